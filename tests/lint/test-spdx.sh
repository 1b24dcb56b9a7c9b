#!/bin/sh
# SPDX-License-Identifier: MIT
# Every source names its licence near its top.
# usage: test-spdx.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.S' '*.py' '*.sh' \
	'*meson.build' '*.scd' dev .ci/run | {
	bad=0
	while read -r file; do
		[ -f "$file" ] || continue
		if ! head -n 4 "$file" | grep -q 'SPDX-License-Identifier: MIT'; then
			echo "$file: no SPDX line"
			bad=1
		fi
	done
	exit "$bad"
}
