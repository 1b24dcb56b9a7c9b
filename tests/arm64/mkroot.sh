#!/bin/sh
# SPDX-License-Identifier: MIT
#
# usage: mkroot.sh FOLDER
#
# Makes FOLDER: the arm64 libraries that kvd is built with, as a root tree, and cross.ini, a
# cross file of meson for it that runs programs by qemu-user. The machine's own packages are
# left alone: apt works on lists and a package database of the folder's own.
set -eu
[ $# -eq 1 ] || { echo "usage: mkroot.sh FOLDER" >&2; exit 2; }
gcc_version=$(aarch64-linux-gnu-gcc -dumpversion)
packages="libc6-dev libgcc-${gcc_version%%.*}-dev liburing-dev libsystemd-dev libinih-dev
	libpcre2-dev libssl-dev libxxhash-dev check"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
part=$folder/part
rm -rf "$part" "$folder/cross.ini"
mkdir -p "$part/state/lists/partial" "$part/cache/archives/partial" "$part/root"
: >"$part/status"

apt_arm64() {
	apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
		-o Dir::State="$part/state" -o Dir::State::status="$part/status" \
		-o Dir::Cache="$part/cache" -o APT::Sandbox::User=root "$@" >&2
}

apt_arm64 update
# shellcheck disable=SC2086 # a list of words
apt_arm64 install --no-install-recommends --download-only $packages
for deb in "$part"/cache/archives/*.deb; do
	dpkg-deb -x "$deb" "$part/root"
done
rm -rf "$folder/root"
mv "$part/root" "$folder/root"
rm -rf "$part"

# KVD_EMULATOR: see emulator_lacks() in tests/unit/suite.h.
cat >"$folder/part.ini" <<INI
[binaries]
c = ['aarch64-linux-gnu-gcc']
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['env', 'KVD_EMULATOR=qemu-user', 'qemu-aarch64', '-L', '$folder/root', '-cpu', 'max']

[properties]
needs_exe_wrapper = true
sys_root = '$folder/root'
pkg_config_libdir = ['$folder/root/usr/lib/aarch64-linux-gnu/pkgconfig', '$folder/root/usr/share/pkgconfig']

[built-in options]
c_args = ['--sysroot=$folder/root']
c_link_args = ['--sysroot=$folder/root']

[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'armv8-a'
endian = 'little'
INI
mv "$folder/part.ini" "$folder/cross.ini"
