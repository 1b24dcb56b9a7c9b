#!/bin/sh
# SPDX-License-Identifier: MIT
# Without what they need and without a network, commands say in one line what is missing.
# usage: test-offline.sh SOURCE_ROOT
set -eu
root=${1:-.}
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
bad=0

# expect WHAT TEXT COMMAND...: it fails, without a traceback, and says TEXT.
expect() {
	what=$1
	text=$2
	shift 2
	status=0
	"$@" >"$empty/out" 2>&1 || status=$?
	if [ "$status" = 0 ] || ! grep -qF "$text" "$empty/out" ||
		grep -q '^Traceback' "$empty/out"; then
		printf '%s: exit %s, wanted a line with "%s":\n' "$what" "$status" "$text"
		sed 's/^/    /' "$empty/out"
		bad=1
	fi
}

expect 'bench_model.py --peer without a peer' KVD_PEER_VENV \
	env -u KVD_PEER_VENV python3 "$root/tests/bench/bench_model.py" --peer

# A network namespace of one's own has no network; root or user namespaces give one.
if unshare -n true 2>/dev/null; then
	alone='unshare -n'
elif unshare -rn true 2>/dev/null; then
	alone='unshare -rn'
else
	exit "$bad"
fi
# Where the build's packages are missing, those come first and are named as well.
# shellcheck disable=SC2086 # a command and its option
expect 'dev demo without a network' 'The first run needs' \
	$alone env -u KVD_MODEL XDG_CACHE_HOME="$empty" PIP_RETRIES=0 "$root/dev" demo
exit "$bad"
