#!/bin/sh
# SPDX-License-Identifier: MIT
# Comments within 100 columns; no declaration cut in two for the comment behind it. Headers of
# the inside say what, and the code how: of a folder's lines at most 35 per cent are comments, of
# one header's at most 45.
# usage: test-comments.sh SOURCE_ROOT
set -eu
exec python3 -B - "$(dirname -- "$0")" "${1:-.}" <<'PY'
import os
import re
import sys

sys.path.insert(0, sys.argv[1])
import csource

COLUMNS = 100
SHARE_OF_FOLDER = 35
SHARE = 45
# Shorter headers are mostly their first paragraph; installed ones explain themselves to people
# who do not have the sources.
SHORT = 40
INSTALLED = re.compile(r"(ipc|client)/include/|tests/")


def comment_lines(lines):
    """The numbers of the lines that hold a comment, and of those that hold nothing else."""
    some, whole = set(), set()
    inside = False
    for i, line in enumerate(lines):
        text = re.sub(r'"(?:\\.|[^"\\])*"', '""', line) if not inside else line
        if inside or "/*" in text or "//" in text:
            some.add(i)
        if inside or text.lstrip().startswith(("/*", "//")):
            whole.add(i)
        rest = text
        while True:
            at = rest.find("*/" if inside else "/*")
            if at < 0:
                break
            rest = rest[at + 2:]
            inside = not inside
    return some, whole


root = sys.argv[2]
bad = 0
folders = {}
for name in csource.tracked(root, "*.c", "*.h"):
    with open(os.path.join(root, name), encoding="utf-8") as f:
        lines = f.read().split("\n")[:-1]
    some, whole = comment_lines(lines)
    for i in sorted(some):
        if len(lines[i].expandtabs(8)) > COLUMNS:
            bad += 1
            print(f"{name}:{i + 1}: a comment beyond column {COLUMNS}")
    for i in range(1, len(lines)):
        if re.search(r";\s*/\*", lines[i]) and i - 1 not in some \
                and re.match(r"^\s+[\w\s*]+$", lines[i - 1]):
            bad += 1
            print(f"{name}:{i}: a declaration cut in two; the comment goes above it")
    if name.endswith(".h") and not INSTALLED.match(name):
        # The licence's line is none of the author's.
        n_comments, n_lines = len(whole) - 1, len(lines)
        sums = folders.setdefault(os.path.dirname(name) + "/", [0, 0])
        sums[0] += n_comments
        sums[1] += n_lines
        share = 100 * n_comments / n_lines
        if n_lines >= SHORT and share > SHARE:
            bad += 1
            print(f"{name}: {share:.0f} % of its lines are comments, {SHARE} is the most")
for folder, (n_comments, n_lines) in sorted(folders.items()):
    share = 100 * n_comments / n_lines
    if share > SHARE_OF_FOLDER:
        bad += 1
        print(f"{folder}: {share:.1f} % of its headers' lines are comments, "
              f"{SHARE_OF_FOLDER} is the most")
sys.exit(1 if bad else 0)
PY
