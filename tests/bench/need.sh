# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What benchmarks with --peer want.

peer_package=llama-cpp-python==0.3.36

need_peer() {
	peer=${KVD_PEER_VENV:-$cache/peer}
	KVD_PEER_VENV=$peer
	export KVD_PEER_VENV
	if [ -x "$peer/bin/python" ] && "$peer/bin/python" -c 'import llama_cpp' 2>/dev/null; then
		return 0
	fi
	need_packages python3-venv cmake:cmake g++:g++ gcc:gcc ninja:ninja-build
	say "building the peer, $peer_package, into $peer (about ten minutes, once)"
	mkdir -p "$(dirname "$peer")"
	rm -rf "$peer"
	# Debian's own Python refuses to install packages outside an environment.
	python3 -m venv "$peer" || die "python3 -m venv failed; is python3-venv installed?"
	"$peer/bin/pip" install --disable-pip-version-check --verbose "$peer_package" >&2 ||
		die "could not install $peer_package; the first --peer run needs the network"
}
