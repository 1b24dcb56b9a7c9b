#!/bin/sh
# SPDX-License-Identifier: MIT
# Words that HACKING.md replaces, in code and documents; and array lengths by hand where a
# macro may be included.
# usage: test-words.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
status=0
if git ls-files -z --cached --others --exclude-standard '*.c' '*.h' '*.py' '*.sh' '*.md' '*.scd' \
	'*.in' dev | grep -zvE '^(HACKING\.md|tests/lint/test-words\.sh)$' |
	xargs -0r grep -niwE 'whoever|anew|spoil(s|ed)?|right after both|open blocks?'; then
	status=1
fi

# kvctl, the kernels and programs of one file have no <ipc/base.h>.
if git ls-files -z --cached --others --exclude-standard 'daemon/*.[ch]' 'ipc/*.c' 'client/*.c' \
	'tests/*.[ch]' | grep -zvE '^(client/kvctl/|client/examples/|tests/system/failcall\.c$)' |
	xargs -0r grep -nE 'sizeof\(([A-Za-z_]+)\) */ *sizeof\(\1\[0\]\)'; then
	status=1
fi
exit $status
