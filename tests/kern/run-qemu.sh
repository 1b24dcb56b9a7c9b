#!/bin/sh
# SPDX-License-Identifier: MIT
# usage: run-qemu.sh QEMU CHECKKERN - a quick pass of the kernel tests on a CPU of 2008.
[ -n "$1" ] || { echo "qemu-x86_64 not found"; exit 77; }
exec "$1" -cpu Nehalem "$2" --quick
