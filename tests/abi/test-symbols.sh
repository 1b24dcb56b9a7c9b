#!/bin/sh
# SPDX-License-Identifier: MIT
# The library exports what its map says, each under the map's node, and the map says
# what the header declares.
# usage: test-symbols.sh LIBRARY MAP HEADER
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
nm -D --defined-only --with-symbol-versions "$1" | awk '$2 == "T" { print $3 }' |
	LC_ALL=C sort >"$tmp/library"
awk '/^KVCLIENT_/ { node = $1 } /^\tkvc_/ { sub(/;/, "", $1); print $1 "@@" node }' "$2" |
	LC_ALL=C sort >"$tmp/map"
diff -u "$tmp/map" "$tmp/library" || {
	echo "exported symbols (+) differ from $2 (-)"
	exit 1
}
sed 's/@@.*//' "$tmp/map" >"$tmp/names"
tr -d '\n' <"$3" | grep -oE 'KVC_API [^;]*;' | grep -oE 'kvc_[a-z0-9_]+\(' | tr -d '(' |
	LC_ALL=C sort -u >"$tmp/header"
# Every KVC_API declaration names its function first.
diff -u "$tmp/names" "$tmp/header" || {
	echo "functions of $3 (+) differ from $2 (-)"
	exit 1
}
