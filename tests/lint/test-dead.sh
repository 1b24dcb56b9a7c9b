#!/bin/sh
# SPDX-License-Identifier: MIT
# No function of the product that the product itself never reaches, from main() of a program,
# a symbol that the library exports, or a table. An entry of a table counts as reached.
# usage: test-dead.sh SOURCE_ROOT
set -eu
exec python3 -B - "$(dirname -- "$0")" "${1:-.}" <<'PY'
import os
import re
import sys

sys.path.insert(0, sys.argv[1])
import csource

# What only tests call, and why it is in the product all the same.
FOR_TESTS = {
    "block_pool_check": "the equations of the pool",
    "prefix_check": "the equations of the index",
    "sched_check": "the equations of the scheduler",
    "plan_check": "the equations of a plan",
    "gguf_open_memory": "a model without a file",
    "kv_cpu_features": "what the CPU has, unmasked",
    "kv_fp16_k_index": "the layout of a block as a formula",
    "kv_fp16_v_index": "the layout of a block as a formula",
    "kv_int4_k_index": "the layout of a block as a formula",
    "kv_int4_v_index": "the layout of a block as a formula",
    "loop_uring_ring": "the ring, to fill it up",
}
# Functions here are named by macros; the compiler warns of the static ones.
MACRO_NAMED = re.compile(r"kernels/(?!c/|cpu/)\w+/")

root = sys.argv[2]
tree = csource.Tree(root, csource.product(root))
reached, todo = set(), []


def reach(name, function):
    home = tree.find(name, function)
    if home and (home, function) not in reached:
        reached.add((home, function))
        todo.append((home, function))


def follow():
    while todo:
        name, function = todo.pop()
        for used in tree.sources[name].uses.get(function, ()):
            reach(name, used)


for name, source in tree.sources.items():
    for function in source.uses[""]:
        reach(name, function)
    for function in source.functions:
        if function == "main" or function.endswith("()") or MACRO_NAMED.match(name):
            reach(name, function)
with open(os.path.join(root, "client/libkvclient.map"), encoding="utf-8") as f:
    for function in re.findall(r"\bkvc_\w+", f.read()):
        reach("client/client.c", function)
follow()

bad = 0
for function, why in FOR_TESTS.items():
    homes = [name for name, source in tree.sources.items() if function in source.functions]
    if not homes or (homes[0], function) in reached:
        bad += 1
        print(f"{function}: gone or used by the product, take it off the list")
    for home in homes[:1]:
        reach(home, function)
follow()
for name, source in tree.sources.items():
    for function in source.functions:
        if (name, function) not in reached:
            bad += 1
            print(f"{name}: {function}() has no caller in the product")
sys.exit(1 if bad else 0)
PY
