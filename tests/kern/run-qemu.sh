#!/bin/sh
# SPDX-License-Identifier: MIT
# usage: run-qemu.sh QEMU MODEL CHECKKERN [ARG ...] - kernel tests on another CPU.
[ -n "$1" ] || { echo "qemu-x86_64 not found"; exit 77; }
qemu=$1 model=$2
shift 2
exec "$qemu" -cpu "$model" "$@"
