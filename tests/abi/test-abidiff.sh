#!/bin/sh
# SPDX-License-Identifier: MIT
# libabigail's view of the library against the one that was kept: functions that went or
# changed, structs whose fields moved. What an interface may do, new functions and fields
# at the end of a struct that says its own size, passes.
# usage: test-abidiff.sh LIBRARY KEPT SUPPRESSIONS HEADERS
# To keep a new state, after thinking: test-abidiff.sh --update with the same arguments.
set -eu
command -v abidiff >/dev/null || exit 77
if [ "$1" = --update ]; then
	shift
	abidw --headers-dir "$4" --no-show-locs --no-corpus-path --no-comp-dir-path \
		--drop-private-types --out-file "$2" "$1"
	exit 0
fi
status=0
abidiff --no-added-syms --no-show-locs --drop-private-types --headers-dir2 "$4" \
	--suppressions "$3" "$2" "$1" || status=$?
# Bit 2: the interface changed; bit 3: incompatibly; bits 0 and 1: abidiff failed.
[ "$status" = 0 ] || {
	echo "the interface of $1 differs from $2; see $0"
	exit 1
}
