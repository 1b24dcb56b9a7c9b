#!/bin/sh
# SPDX-License-Identifier: MIT
# Each installed header compiles alone, as strict C99 and as C++, without a warning and
# without names that are not ours.
# usage: test-headers.sh "CC" "CXX" ROOT
set -eu
cc=$1
cxx=$2
root=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for header in kvd/abi.h kvd/proto.h kvd/proto_admin.h kvclient.h; do
	echo "#include <$header>" >"$tmp/alone.c"
	echo 'int alone; int main(void) { return alone; }' >>"$tmp/alone.c"
	cp "$tmp/alone.c" "$tmp/alone.cc"
	set -- -I"$root/ipc/include" -I"$root/client/include" -Wall -Wextra -pedantic -Werror
	$cc -std=c99 "$@" -fsyntax-only "$tmp/alone.c"
	if command -v "$cxx" >/dev/null; then
		$cxx -std=c++11 "$@" -fsyntax-only "$tmp/alone.cc"
	fi
	$cc -std=c99 "$@" -dD -E "$tmp/alone.c" |
		sed -n "s/^#define \([A-Za-z_0-9]*\).*/\1/p" >"$tmp/all"
	# Macros of ours begin with KVD_ or KVC; what libc defines comes from libc.
	printf '#include <stddef.h>\n#include <stdint.h>\n' >"$tmp/libc.c"
	$cc -std=c99 -dD -E "$tmp/libc.c" |
		sed -n "s/^#define \([A-Za-z_0-9]*\).*/\1/p" >"$tmp/libc"
	if grep -vxFf "$tmp/libc" "$tmp/all" | grep -vE '^(KVD_|KVC)'; then
		echo "$header defines foreign names"
		exit 1
	fi
	echo "$header: ok"
done
