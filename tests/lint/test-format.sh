#!/bin/sh
# SPDX-License-Identifier: MIT
# C sources as clang-format would write them. Other releases than 14 break lines in other
# places, so they skip rather than complain.
# usage: test-format.sh SOURCE_ROOT
set -eu
cd "${1:-.}"
command -v clang-format >/dev/null || exit 77
case $(clang-format --version) in
*' 14.'*) ;;
*)
	echo "clang-format is not release 14"
	exit 77
	;;
esac
git ls-files -z --cached --others --exclude-standard '*.c' '*.h' |
	xargs -0r -n 8 -P 2 clang-format --dry-run -Werror
