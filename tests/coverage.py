#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Branch coverage of the policy: daemon/cache, daemon/sched and daemon/user.c.

usage: coverage.py BUILD [SOURCE]

Reads what a build with -Db_coverage=true has left after its tests ran. Lines with assert()
do not count: their other branch is the end of the program. Prints a table; the exit status
is 1 below the limit.
"""
import json
import os
import subprocess
import sys
import tempfile

LIMIT = 90.0
GROUPS = ("daemon/cache/", "daemon/sched/", "daemon/user.c")


def gcov_files(build):
    for folder, _, files in os.walk(build):
        for name in files:
            if name.endswith(".gcda") and any(
                    g.replace("/", "_") in name or g in os.path.join(folder, name)
                    for g in ("daemon/cache", "daemon/sched", "user.c")):
                yield os.path.join(folder, name)


def collect(build, source):
    """{file: {line: [taken, total]}}; the best of all objects that a line is part of."""
    branches = {}
    with tempfile.TemporaryDirectory() as work:
        for path in gcov_files(build):
            run = subprocess.run(["gcov", "-b", "--json-format", "--stdout", path],
                                 cwd=work, capture_output=True, check=False)
            for text in run.stdout.splitlines():
                for f in json.loads(text)["files"]:
                    name = os.path.relpath(os.path.join(build, f["file"]), source)
                    if not name.startswith(GROUPS) or not name.endswith(".c"):
                        continue
                    lines = branches.setdefault(name, {})
                    for line in f["lines"]:
                        found = line["branches"]
                        if found:
                            taken = [b["count"] > 0 for b in found]
                            old = lines.get(line["line_number"])
                            if old and len(old) == len(taken):
                                taken = [a or b for a, b in zip(old, taken)]
                            lines[line["line_number"]] = taken
    return branches


def main():
    build = os.path.abspath(sys.argv[1])
    source = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else ".")
    totals = {g: [0, 0] for g in GROUPS}
    for name, lines in sorted(collect(build, source).items()):
        with open(os.path.join(source, name), encoding="utf-8") as f:
            text = f.read().split("\n")
        taken = total = 0
        missed = []
        for number, hits in sorted(lines.items()):
            if "assert(" in text[number - 1] or "assert(" in text[number - 2]:
                continue
            taken += sum(hits)
            total += len(hits)
            if not all(hits):
                missed.append(number)
        group = next(g for g in GROUPS if name.startswith(g))
        totals[group][0] += taken
        totals[group][1] += total
        if total:
            print(f"{name:34} {100 * taken / total:6.1f} %  {taken}/{total}"
                  f"  not all of lines {', '.join(map(str, missed)) or '-'}")
    bad = False
    for group, (taken, total) in totals.items():
        share = 100 * taken / total if total else 0.0
        bad |= share < LIMIT
        print(f"branches of {group:22} {share:6.1f} %  (limit {LIMIT:.0f} %)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
