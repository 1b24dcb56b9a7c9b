#!/bin/sh
# SPDX-License-Identifier: MIT
# Shell scripts are clean under shellcheck.
# usage: test-shell.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
command -v shellcheck >/dev/null || exit 77
git ls-files -z --cached --others --exclude-standard '*.sh' dev .ci/run | xargs -0r shellcheck
