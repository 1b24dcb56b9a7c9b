#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs in the virtual machine of run.sh, as root, once. Prints TAP between two marks.
export LC_ALL=C.UTF-8
dir=/opt/kvd-vm
group=/sys/fs/cgroup/kvd.slice
drop_in=/run/systemd/system/kvd.service.d/60-test.conf
n=0

START_FAILED=f54ea2fef4874de6b33839f84d888b6e
MODEL_BAD=d2415b26edda4a79964ada0cf547116c
IO_URING_REFUSED=3ae78eafce75463281abb1b6a833bade

check() {
	# check NAME FUNCTION
	n=$((n + 1))
	if out=$("$2" 2>&1); then
		echo "ok $n - $1"
	else
		echo "not ok $n - $1"
		{
			echo "$out"
			journalctl -u kvd -n 8 -o cat --no-pager
		} | tail -n 24 | sed 's/^/#   /'
	fi
}

with() {
	# with LINE...: the service with a drop-in of these lines
	mkdir -p "${drop_in%/*}"
	printf '[Service]\n' >"$drop_in"
	printf '%s\n' "$@" >>"$drop_in"
	systemctl daemon-reload
	restart
}

restart() {
	systemctl reset-failed kvd.service
	systemctl restart kvd.service
}

plain() {
	rm -f "$drop_in"
	systemctl daemon-reload
	systemctl set-property --runtime kvd.slice MemoryMax=1G
	restart
}

answers() {
	[ -n "$(kvctl generate --raw --max-tokens 4 'abc abc')" ]
}

since_now() {
	journalctl --sync
	cursor=$(journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p')
}

# one MESSAGE_ID WORD: exactly one entry of that kind since since_now, and it holds the word
one() {
	journalctl --sync
	text=$(journalctl -u kvd --after-cursor="$cursor" -o json --no-pager | grep "$1")
	echo "$text"
	[ "$(grep -c . <<<"$text")" = "${3:-1}" ] && grep -q -- "$2" <<<"$text"
}

installs() {
	[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || return 1
	dpkg -i $dir/libkvclient0_*.deb $dir/kvd_*.deb >/tmp/dpkg.log 2>&1 || {
		cat /tmp/dpkg.log
		return 1
	}
	mkdir -p /etc/kvd/kvd.conf.d
	cp $dir/tiny.gguf /var/lib/kvd/models/
	printf '[model]\npath = /var/lib/kvd/models/tiny.gguf\n[cache]\nkv_cache_memory = 64M\n' \
		>/etc/kvd/kvd.conf.d/50-vm.conf
	plain && answers
}

slice_limits() {
	# The groups hold what the units say.
	[ "$(cat $group/memory.swap.max)" = 0 ] || return 1
	[ "$(cat $group/pids.max)" = 256 ] || return 1
	[ "$(cat $group/kvd.service/pids.max)" = 128 ] || return 1
	[ "$(cat $group/memory.max)" = 1073741824 ]
}

slice_pays() {
	# What the cache takes is charged below the slice, also after a restart and a kill.
	answers || return 1
	before=$(cat $group/memory.current)
	restart && answers || return 1
	kill -9 "$(systemctl show -P MainPID kvd)"
	for _ in $(seq 100); do
		answers 2>/dev/null && break
		sleep 0.1
	done
	answers || return 1
	after=$(cat $group/memory.current)
	echo "$before $after"
	[ "$after" -gt 1000000 ]
}

too_little_memory() {
	since_now
	systemctl set-property --runtime kvd.slice MemoryMax=48M
	! restart || return 1
	systemctl stop kvd
	one $START_FAILED 'limit of control group /kvd.slice is 48 MiB' || return 1
	plain && answers
}

killed_for_memory() {
	# A real kill by the kernel: the manager starts it again, and with room it serves.
	pid=$(systemctl show -P MainPID kvd)
	systemctl set-property --runtime kvd.slice MemoryMax=2M
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	! kill -0 "$pid" 2>/dev/null || return 1
	grep -q '^oom_kill [1-9]' $group/memory.events || return 1
	systemctl set-property --runtime kvd.slice MemoryMax=1G
	systemctl reset-failed kvd
	for _ in $(seq 100); do
		answers 2>/dev/null && break
		sleep 0.2
	done
	answers
}

too_few_tasks() {
	since_now
	! with TasksMax=1 || return 1
	systemctl stop kvd
	one $MODEL_BAD TasksMax= || return 1
	plain && answers
}

no_network() {
	# No address may be reached, by the filter of the group and not only by its absence.
	journalctl -b -u kvd -u init.scope --no-pager | grep -iE 'kvd.*(BPF|firewall)' && return 1
	! systemd-run -q --wait --pipe -p IPAddressDeny=any python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"x", ("127.0.0.1", 9))' || return 1
	systemctl show -P IPAddressDeny kvd | grep -q 0.0.0.0/0
}

tiny_memlock() {
	with LimitMEMLOCK=4K && grep -q 'locked memory *4096 ' \
		"/proc/$(systemctl show -P MainPID kvd)/limits" && answers || return 1
	plain
}

io_uring_refused() {
	since_now
	with SystemCallFilter=~io_uring_setup && answers && one $IO_URING_REFUSED epoll || return 1
	plain
}

no_huge_pages() {
	[ ! -e /sys/kernel/mm/transparent_hugepage/enabled ] ||
		echo never >/sys/kernel/mm/transparent_hugepage/enabled
	restart && answers
}

small_shm() {
	mkdir -p /dev/shm
	mount -t tmpfs -o size=64M tmpfs /dev/shm 2>/dev/null ||
		mount -o remount,size=64M /dev/shm || return 1
	with InaccessiblePaths= && answers || return 1
	plain
}

echo "@@BEGIN"
echo "# Linux $(uname -r), $(systemctl --version | head -n 1)"
check "the packages install and serve on a pure hierarchy" installs
check "limits of slice and service are those of their groups" slice_limits
check "the slice pays for the cache after restart and kill" slice_pays
check "a memory limit below the cache is refused in one line" too_little_memory
check "killed for memory, it comes back" killed_for_memory
check "TasksMax below the number of threads is refused in one line" too_few_tasks
check "IPAddressDeny binds" no_network
check "a tiny LimitMEMLOCK is enough" tiny_memlock
check "without io_uring it says so and serves" io_uring_refused
check "without transparent huge pages it serves" no_huge_pages
check "a /dev/shm of 64 MB is enough" small_shm
echo "1..$n"
echo "@@END"
