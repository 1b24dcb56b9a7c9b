#!/bin/sh
# SPDX-License-Identifier: MIT
# Words that HACKING.md replaces, in code and documents.
# usage: test-words.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
! git ls-files -z --cached --others --exclude-standard '*.c' '*.h' '*.py' '*.sh' '*.md' '*.scd' \
	'*.in' dev | grep -zvE '^(HACKING\.md|tests/lint/test-words\.sh)$' |
	xargs -0r grep -niwE 'whoever|anew|spoil(s|ed)?|right after both|open blocks?'
