#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one libFuzzer program for KVD_FUZZ_SECONDS (20; ./dev test --long: 60), beginning from
# its corpus, which stays as it is. A finding is printed, so that a log is enough to
# repeat it.
# usage: run.sh PROGRAM CORPUS
set -eu
program=$1
corpus=$2
seconds=${KVD_FUZZ_SECONDS:-20}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/new"
[ -d "$corpus" ] || corpus=$work/new
status=0
"$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
	-artifact_prefix="$work/" "$work/new" "$corpus" >"$work/log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
	grep -v '^#[0-9]' "$work/log" | tail -n 80
	for finding in "$work"/crash-* "$work"/leak-* "$work"/timeout-* "$work"/oom-*; do
		[ -f "$finding" ] || continue
		echo "input, in base64, $(basename "$finding"):"
		base64 "$finding" | head -n 200
	done
else
	grep -E 'stat::number_of_executed_units|stat::average_exec|cov:' "$work/log" | tail -n 3
fi
# libFuzzer ends with 77 at a finding, which meson would take for a skip.
[ "$status" -eq 0 ] || exit 1
