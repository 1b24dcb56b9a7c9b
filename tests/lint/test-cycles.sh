#!/bin/sh
# SPDX-License-Identifier: MIT
# No circles: headers that include each other, files that call each other. A call through a
# pointer is none; who hands a function over knows both sides, who calls it knows only one.
# usage: test-cycles.sh SOURCE_ROOT
set -eu
exec python3 -B - "$(dirname -- "$0")" "${1:-.}" <<'PY'
import sys

sys.path.insert(0, sys.argv[1])
import csource


def circles(graph):
    """The strongly connected components with more than one member (Tarjan 1972)."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


tree = csource.Tree(sys.argv[2], csource.product(sys.argv[2]))
includes, calls, reasons = {}, {}, {}
for name, source in tree.sources.items():
    for other in tree.included(name):
        includes.setdefault(name, set()).add(other)
    for function in sorted(set().union(*source.calls.values())):
        home = tree.find(name, function)
        if home and home != name:
            calls.setdefault(name, set()).add(home)
            reasons.setdefault((name, home), []).append(function)

bad = 0
for circle in circles(includes):
    bad += 1
    print("headers include each other:", ", ".join(circle))
for circle in circles(calls):
    bad += 1
    print("files call each other:")
    for here in circle:
        for there in circle:
            if (here, there) in reasons:
                print(f"    {here} calls of {there}: {', '.join(reasons[here, there][:5])}")
sys.exit(1 if bad else 0)
PY
