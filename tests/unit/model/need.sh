# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What the suite types wants beside the build.

gguf_package=gguf==0.19.0

# The package that requantizes the default model for the suite types; its tests are skipped
# where it cannot be had.
need_gguf() {
	if python3 -c 'import gguf' 2>/dev/null; then
		return 0
	fi
	venv=$cache/gguf
	if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import gguf' 2>/dev/null; then
		need_packages python3-venv
		say "installing $gguf_package into $venv"
		mkdir -p "$cache"
		rm -rf "$venv"
		if ! python3 -m venv "$venv" ||
			! "$venv/bin/pip" install -q --disable-pip-version-check "$gguf_package" >&2; then
			say "could not install $gguf_package; tests of requantized models are skipped"
			rm -rf "$venv"
			return 0
		fi
	fi
	PATH=$venv/bin:$PATH
	export PATH
}
