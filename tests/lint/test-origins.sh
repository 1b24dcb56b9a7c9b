#!/bin/sh
# SPDX-License-Identifier: MIT
# Where a negative code is born in the daemon's shell, engine/ and serve/, error_origin() notes it
# in the debug log: once an -ENOMEM is at the top, nobody knows where it came from. In serve/ and
# user.c that is for codes of the system and for -ENOMEM and -EFAULT; the others there tell a
# client of its own mistake or limit.
# Left out: the log itself, which must not call itself, and what reads the configuration, which
# has a report of its own and does not know the log.
# usage: test-origins.sh SOURCE_ROOT
set -eu
cd "${1:-.}"

births() {
	# shellcheck disable=SC2016 # awk's $0
	awk -v codes="$1" '
		FNR == 1 { text = "" }
		{
			line = $0
			sub(/\/\*.*/, "", line)
			# A code that is made: not one that is compared with, nor a field of a table, nor
			# what a loop begins with.
			if (line ~ ("(return|=|[?]|:) *-(" codes ")") && line !~ /[=!<>]= *-/ &&
			    line !~ /^\t*(case |[.[])/ && line !~ /^\tint r = -E[A-Z]+;/ && line !~ /error_origin/ && text !~ /error_origin\($/) {
				printf "%s:%d: no error_origin(): %s\n", FILENAME, FNR, $0
				bad = 1
			}
			text = line
		}
		END { exit bad }' "$2"
}

failed=0
for file in daemon/*.c daemon/engine/*.c; do
	case $file in
	daemon/log*.c | daemon/config*.c | daemon/escape.c) ;;
	daemon/user*.c) births 'ENOMEM|EFAULT|errno' "$file" || failed=1 ;;
	*) births 'E[A-Z]+|errno' "$file" || failed=1 ;;
	esac
done
for file in daemon/serve/*.c; do
	births 'ENOMEM|EFAULT|errno' "$file" || failed=1
done
exit "$failed"
