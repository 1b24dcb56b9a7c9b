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
# What the macros and inline functions expand to, in both languages.
cat >"$tmp/use.c" <<'EOF'
#include <kvclient.h>
int main(void)
{
	struct kvc_connect_opts c = KVC_OPTS_INIT(struct kvc_connect_opts);
	struct kvc_gen_opts g = KVC_OPTS_INIT(struct kvc_gen_opts);
	struct kvc_score_opts s = KVC_OPTS_INIT(struct kvc_score_opts);
	struct kvc_ring_opts r = KVC_OPTS_INIT(struct kvc_ring_opts);
	struct kvc_input in = kvc_text("a", 1);

	return c.size != sizeof(c) || g.size != sizeof(g) || s.size != sizeof(s) ||
	       r.size != sizeof(r) || c.spin_ns || g.salt || s.top_cap || r.out_bytes ||
	       in.n != 1 || in.reserved || KVD_E_QUOTA > KVD_E_BASE;
}
EOF
cp "$tmp/use.c" "$tmp/use.cc"
$cc -std=c99 "$@" -o "$tmp/use" "$tmp/use.c" && "$tmp/use"
if command -v "$cxx" >/dev/null; then
	$cxx -std=c++11 "$@" -o "$tmp/use" "$tmp/use.cc" && "$tmp/use"
fi
echo "macros: ok"
