# SPDX-License-Identifier: MIT
# shellcheck shell=sh disable=SC2154 # the variables and functions of ./dev, which sources this
#
# What the suite vm wants beside the packages.

vm_packages='qemu-system-x86_64:qemu-system-x86 cpio:cpio zstd:zstd'
vm_kernel=linux-image-cloud-amd64

# An emulator and the kernel that the package $vm_kernel stands for. What cannot be had skips
# the suite, which says so.
need_vm() {
	# shellcheck disable=SC2086 # a list of words
	need_packages $vm_packages
	folder=$cache/vm
	mkdir -p "$folder"
	if ! ls "$folder"/vmlinuz-* >/dev/null 2>&1; then
		say "fetching the kernel of $vm_kernel (once, about 30 MB)"
		(
			cd "$folder" && rm -rf part && mkdir part && cd part &&
				package=$(apt-cache depends "$vm_kernel" | sed -n 's/ *Depends: //p' |
					head -n 1) && [ -n "$package" ] &&
				apt-get -q -o APT::Sandbox::User=root download "$package" >&2 &&
				dpkg-deb -x ./*.deb . && cp boot/vmlinuz-* "$folder/"
		) || say "could not fetch it: the first run of this suite needs a Debian mirror"
		rm -rf "$folder/part"
	fi
	for KVD_VM_KERNEL in "$folder"/vmlinuz-*; do
		export KVD_VM_KERNEL
	done
}
