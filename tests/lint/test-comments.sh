#!/bin/sh
# SPDX-License-Identifier: MIT
# Comments within 100 columns; no declaration cut in two for the comment behind it.
# usage: test-comments.sh SOURCE_ROOT
set -eu
exec python3 -B - "$(dirname -- "$0")" "${1:-.}" <<'PY'
import os
import re
import sys

sys.path.insert(0, sys.argv[1])
import csource

COLUMNS = 100


def comment_lines(lines):
    """The numbers of the lines that hold a comment."""
    some = set()
    inside = False
    for i, line in enumerate(lines):
        text = re.sub(r'"(?:\\.|[^"\\])*"', '""', line) if not inside else line
        if inside or "/*" in text or "//" in text:
            some.add(i)
        rest = text
        while True:
            at = rest.find("*/" if inside else "/*")
            if at < 0:
                break
            rest = rest[at + 2:]
            inside = not inside
    return some


root = sys.argv[2]
bad = 0
for name in csource.tracked(root, "*.c", "*.h"):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        lines = f.read().split("\n")[:-1]
    some = comment_lines(lines)
    for i in sorted(some):
        if len(lines[i].expandtabs(8)) > COLUMNS:
            bad += 1
            print(f"{name}:{i + 1}: a comment beyond column {COLUMNS}")
    for i in range(1, len(lines)):
        if re.search(r";\s*/\*", lines[i]) and i - 1 not in some \
                and re.match(r"^\s+[\w\s*]+$", lines[i - 1]):
            bad += 1
            print(f"{name}:{i}: a declaration cut in two; the comment goes above it")
sys.exit(1 if bad else 0)
PY
