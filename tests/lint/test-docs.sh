#!/bin/sh
# SPDX-License-Identifier: MIT
# What the code offers has its entry in the manual: kvctl's verbs and options, the keys
# of the configuration, opcodes, messages and functions. Each set is read from the one table in the
# code that defines it.
# usage: test-docs.sh SOURCE_ROOT
set -eu
exec python3 - "${1:-.}" <<'PY'
import os
import re
import sys

root = sys.argv[1]
bad = 0


def read(*parts):
    path = os.path.join(root, *parts)
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as f:
        return f.read()


def check(what, names, page):
    """Each of the names stands in docs/man/page; no names at all is a broken pattern."""
    global bad
    text = read("docs", "man", page).replace("\\", "")
    if not names:
        print(f"{page}: found no {what} in the code; the pattern in this test is stale")
        bad += 1
    for name in sorted(names):
        if not re.search(r"(?<![\w-])" + re.escape(name) + r"(?![\w])", text):
            print(f"docs/man/{page}: no entry for {what} {name}")
            bad += 1


kvctl = read("client", "kvctl", "main.c")
if kvctl:
    check("verb", set(re.findall(r'^\t\{"([a-z]+)", cmd_', kvctl, re.M)), "kvctl.1.scd")
    folder = os.path.join(root, "client", "kvctl")
    sources = "".join(read("client", "kvctl", f) for f in os.listdir(folder)
                      if f.endswith(".c"))
    check("option", {"--" + o for o in
                     re.findall(r'\{"([a-z-]+)", (?:no|required)_argument', sources)},
          "kvctl.1.scd")
    table = read("client", "kvctl", "exits.h")
    check("exit code", set(re.findall(r"EXIT_\w+ = (\d)", table)), "kvctl.1.scd")
abi = read("ipc", "include", "kvd", "abi.h")
if abi and os.path.exists(os.path.join(root, "docs", "man", "kvd-abi.7.scd")):
    check("opcode", set(re.findall(r"\b(KVD_OP_[A-Z_]+[A-Z])\b\s*=?\s*\d", abi)),
          "kvd-abi.7.scd")
proto = read("ipc", "include", "kvd", "proto.h")
if proto and os.path.exists(os.path.join(root, "docs", "man", "kvd-abi.7.scd")):
    # Each request has a heading of its own, "NAME (number)".
    check("message", {f"{name} ({number})" for name, number in
                      re.findall(r"\bKVD_MSG_([A-Z_]+) = (\d+)\b", proto)},
          "kvd-abi.7.scd")
config = read("daemon", "config_keys.c")
if config and os.path.exists(os.path.join(root, "docs", "man", "kvd.conf.5.scd")):
    check("key", set(re.findall(r'\.name = "([a-z_]+)"', config)), "kvd.conf.5.scd")
header = read("client", "include", "kvclient.h") or read("client", "kvclient.h")
if header and os.path.exists(os.path.join(root, "docs", "man", "kvclient.3.scd")):
    # kvc_opts_init() is what a macro expands to in C++.
    check("function", set(re.findall(r"\b(kvc_[a-z0-9_]+)\(", header)) - {"kvc_opts_init"},
          "kvclient.3.scd")
sys.exit(1 if bad else 0)
PY
