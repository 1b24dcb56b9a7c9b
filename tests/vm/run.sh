#!/bin/sh
# SPDX-License-Identifier: MIT
# The installed packages in a virtual machine with a control group hierarchy of its own,
# where limits bind that a container only declares. No disk: the root tree is the initial
# RAM disk, and guest.sh runs in it. Emulated, so it needs no rights and some minutes.
# Prints TAP. Environment, set by ./dev test vm: KVD_VM_KERNEL (a kernel's image), KVD_DEBS,
# KVD_CONTAINER_TREES.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tree=${KVD_CONTAINER_TREES:-${XDG_CACHE_HOME:-$HOME/.cache}/kvd/containers}/bookworm
kernel=${KVD_VM_KERNEL:-}
debs=${KVD_DEBS:-$here/../../build-deb}

skip() {
	echo "1..0 # SKIP $*"
	exit 0
}

[ -f "$kernel" ] || skip "no kernel; ./dev test vm fetches one"
[ -d "$tree" ] || skip "no root tree at $tree; ./dev test container makes it"
for tool in qemu-system-x86_64 cpio zstd; do
	command -v "$tool" >/dev/null || skip "$tool is missing"
done
ls "$debs"/kvd_*.deb "$debs"/libkvclient0_*.deb >/dev/null 2>&1 ||
	skip "no packages in $debs; ./dev deb builds them"

work=$(mktemp -d "${TMPDIR:-/tmp}/kvd-vm.XXXXXX")
trap 'rm -rf "$work"' EXIT
units=$work/root/etc/systemd/system
mkdir -p "$work/root/opt/kvd-vm" "$units/multi-user.target.wants"
cp "$debs"/kvd_*.deb "$debs"/libkvclient0_*.deb "$here/guest.sh" "$work/root/opt/kvd-vm/"
cp "$here/kvd-vm.service" "$units/"
ln -s ../kvd-vm.service "$units/multi-user.target.wants/kvd-vm.service"
python3 - "$here/../system" "$work/root/opt/kvd-vm/tiny.gguf" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import tinygguf
tinygguf.write_model(sys.argv[2], tokenizer=True, n_layers=1)
PY
pack() {
	(cd "$1" && find . -xdev | cpio -o -H newc --quiet | zstd -1 -q)
}
{ pack "$tree" && pack "$work/root"; } >"$work/initrd"
# A model of CPU that the emulator knows well; AVX2 is in it.
timeout "${KVD_VM_SECONDS:-900}" qemu-system-x86_64 -accel tcg -cpu max -m 2G -smp 2 \
	-display none -monitor none -serial "file:$work/console" -no-reboot -net none \
	-kernel "$kernel" -initrd "$work/initrd" -append \
	"console=ttyS0 quiet rdinit=/lib/systemd/systemd systemd.show_status=0 panic=-1" \
	</dev/null >&2 || echo "# the machine ended with $?"
tr -d '\r' <"$work/console" >"$work/console.txt"
sed -n '/^@@BEGIN/,/^@@END/{/^@@/!p}' "$work/console.txt"
grep -q '^@@END' "$work/console.txt" || {
	echo "Bail out! the guest did not come to its end"
	tail -n 30 "$work/console.txt" | sed 's/^/# /'
	exit 1
}
