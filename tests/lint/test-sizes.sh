#!/bin/sh
# SPDX-License-Identifier: MIT
# File sizes: over 600 lines is worth a look, over 800 needs a reason in HACKING.md.
# usage: test-sizes.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.py' '*.sh' dev | {
	bad=0
	while read -r file; do
		[ -f "$file" ] || continue
		n=$(wc -l <"$file")
		if [ "$n" -gt 800 ] && ! grep -qF "| \`$file\` |" HACKING.md; then
			echo "$file: $n lines, and no reason for it in HACKING.md"
			bad=1
		elif [ "$n" -gt 600 ]; then
			echo "$file: $n lines"
		fi
	done
	exit "$bad"
}
