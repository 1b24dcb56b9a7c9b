#!/bin/sh
# SPDX-License-Identifier: MIT
# Comments within 100 columns; no declaration cut in two for the comment behind it. A header of
# the inside says what, and the code how: 20 to 35 per cent of its lines are comments; beyond
# 50 it is on the list below, which only shrinks.
# usage: test-comments.sh SOURCE_ROOT
set -eu
exec python3 -B - "$(dirname -- "$0")" "${1:-.}" <<'PY'
import os
import re
import sys

sys.path.insert(0, sys.argv[1])
import csource

COLUMNS = 100
SHARE = 50
# Shorter headers are mostly their first paragraph; installed ones explain themselves to people
# who do not have the sources.
SHORT = 25
INSTALLED = re.compile(r"(ipc|client)/include/|tests/")
SHARE_KNOWN = """
daemon/engine/engine_keep.h
daemon/engine/weights_keep.h
daemon/sched/plan.h
daemon/serve/emit.h
daemon/serve/sessions.h
""".split()


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
    if name.endswith(".h") and len(lines) >= SHORT and not INSTALLED.match(name):
        # The licence's line is none of the author's.
        share = 100 * (len(whole) - 1) // len(lines)
        if share > SHARE and name not in SHARE_KNOWN:
            bad += 1
            print(f"{name}: {share} % of its lines are comments, {SHARE} is the most")
        elif share <= SHARE and name in SHARE_KNOWN:
            print(f"{name}: {share} % of its lines are comments, take it off the list")
sys.exit(1 if bad else 0)
PY
