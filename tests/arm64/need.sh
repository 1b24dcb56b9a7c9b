# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What the suite arm64 wants.

# Cross compiler and emulator; the libraries come from tests/arm64/mkroot.sh.
arm64_packages='aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user pkg-config:pkg-config'

# Cross compiler, emulator and a root tree with libraries for arm64, made once. Where they cannot
# be had the suite is left out, which is said and shows as a skip.
need_arm64() {
	arm64_cross=$cache/arm64/cross.ini
	if command -v apt-get >/dev/null 2>&1; then
		# shellcheck disable=SC2086 # a list of words
		need_packages $arm64_packages
		if [ ! -f "$arm64_cross" ]; then
			say "preparing a root tree of arm64 (once, about a minute)"
			"$root/tests/arm64/mkroot.sh" "$cache/arm64" || rm -f "$arm64_cross"
		fi
	fi
	[ -f "$arm64_cross" ] && return 0
	say "no libraries for arm64; its suite is skipped"
	arm64_cross=
}
