#!/bin/sh
# SPDX-License-Identifier: MIT
# Each message id of the daemon has its entry in the journal catalog, and the other way
# round; each entry is well formed and says something.
# usage: test-catalog.sh SOURCE_ROOT
set -eu
exec python3 - "${1:-.}" <<'PY'
import os
import re
import sys

root = sys.argv[1]
bad = 0


def complain(text):
    global bad
    bad += 1
    print(text)


with open(os.path.join(root, "daemon", "msgid.h"), encoding="utf-8") as f:
    ids = dict((i, n) for n, i in re.findall(r'#define MSGID_(\w+)\s+"([0-9a-f]{32})"', f.read()))
with open(os.path.join(root, "systemd", "kvd.catalog"), encoding="utf-8") as f:
    lines = [line for line in f.read().split("\n") if not line.startswith("#")]

entries = {}
current = None
for line in lines:
    if line.startswith("-- "):
        current = line[3:]
        if current in entries:
            complain(f"kvd.catalog: two entries for {current}")
        entries[current] = []
    elif current:
        entries[current].append(line)

if not ids:
    complain("daemon/msgid.h: found no id; the pattern in this test is stale")
for i, name in ids.items():
    if i not in entries:
        complain(f"kvd.catalog: no entry for MSGID_{name} ({i})")
for i, text in entries.items():
    name = ids.get(i)
    if not name:
        complain(f"kvd.catalog: {i} is no id of daemon/msgid.h")
        continue
    blank = text.index("") if "" in text else len(text)
    head = dict(line.split(": ", 1) for line in text[:blank] if ": " in line)
    for key in ("Subject", "Defined-By", "Documentation"):
        if not head.get(key):
            complain(f"kvd.catalog: {name} has no {key}:")
    if len(" ".join(text[blank:]).split()) < 12:
        complain(f"kvd.catalog: {name} does not say what happened and what to do")
    for line in text:
        if len(line) > 80:
            complain(f"kvd.catalog: {name}: line of {len(line)} bytes")
        for field in re.findall(r"@(\w+)@", line):
            if field not in ("KVD_UID", "KVD_CLIENT", "KVD_REQUEST", "KVD_ERRNO", "KVD_DETAIL"):
                complain(f"kvd.catalog: {name}: the daemon writes no field {field}")
sys.exit(1 if bad else 0)
PY
