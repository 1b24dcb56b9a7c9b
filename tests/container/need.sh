# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What the suite container wants beside the build.

container_packages='debootstrap:debootstrap systemd-nspawn:systemd-container'

# Packages of this tree and trees to boot them in; what cannot be had skips its tests.
need_containers() {
	if [ "$(id -u)" != 0 ]; then
		say "the suite container needs root; it is skipped"
		return 0
	fi
	# shellcheck disable=SC2086 # a list of words
	need_packages $container_packages
	trees=${KVD_CONTAINER_TREES:-$cache/containers}
	for suite in bookworm trixie; do
		[ ! -d "$trees/$suite" ] || continue
		say "preparing a root tree of Debian $suite (once, about a minute)"
		"$root/tests/container/mktree.sh" "$suite" "$trees/$suite" ||
			say "could not prepare $suite; its tests are skipped"
	done
	cmd_deb --quick
	KVD_CONTAINER_TREES=$trees
	KVD_DEBS=$root/build-deb
	export KVD_CONTAINER_TREES KVD_DEBS
}
