#!/bin/sh
# SPDX-License-Identifier: MIT
# The layout that the compiler sees is the one that was promised.
# usage: test-layout.sh ABI_LAYOUT ABI_TXT
set -eu
if ! "$1" | diff -u "$2" -; then
	echo "The ABI changed. Lines may be added to $2, none may change or go:"
	echo "what runs today must run with the next daemon."
	exit 1
fi
