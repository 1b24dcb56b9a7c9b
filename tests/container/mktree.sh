#!/bin/sh
# SPDX-License-Identifier: MIT
# Prepares a root tree for the container suite: the smallest Debian with systemd, and the
# libraries that the package of kvd depends on. Done once; later runs boot it unchanged,
# below an overlay. Needs root, debootstrap and the network.
# usage: mktree.sh SUITE FOLDER
set -eu
suite=$1
tree=$2
ssl=libssl3
[ "$suite" = bookworm ] || ssl=libssl3t64
[ ! -e "$tree/usr/lib/systemd/systemd" ] || exit 0
part=$tree.part
rm -rf "$part"
mkdir -p "$(dirname "$tree")"
debootstrap --variant=minbase \
	--include="systemd,systemd-sysv,dbus,liburing2,libinih1,libpcre2-8-0,$ssl,python3" \
	"$suite" "$part" >&2
rm -rf "$part"/var/cache/apt/archives/*.deb "$part"/var/lib/apt/lists/*
# A container makes its own; one that all share would confuse the journal.
: >"$part/etc/machine-id"
mv "$part" "$tree"
