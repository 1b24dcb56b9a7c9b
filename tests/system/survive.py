# SPDX-License-Identifier: MIT
"""What tests/system/survive.c says at its end, held to what a client is promised."""
import json
import statistics

from kvdtest import equal

# Between two NOPs the client sleeps; one that follows an end that closely met it.
BETWEEN_NS = 5_000_000


def check(kind, out):
    """Nothing wrong, lost or twice. Return: what was said."""
    got = json.loads(out)
    n_gaps = len(got["gaps_ns"])
    print(f"# {kind}: {got['answers']} answers, {n_gaps} took above 20 ms")
    assert got["answers"] > 0, f"{kind} got no answer"
    for what in ("wrong", "lost", "twice"):
        equal(got[what], 0, f"answers to {kind} that were {what} ({got['error']})")
    return got


def gaps(got, ends):
    """Milliseconds of each wait during which the daemon ended. Several ends in one count
    once; ends: by time.monotonic_ns()."""
    return [(begun + took - min([begun, *met])) / 1e6 for begun, took in got["gaps_ns"]
            if (met := [at for at in ends if begun - BETWEEN_NS <= at <= begun + took])]


def report(what, nop, ends):
    waits = gaps(nop, ends)
    assert waits, f"{len(ends)} ends, and a NOP waited through none of them"
    print(f"# {what}: daemon ended {len(ends)} times, {len(waits)} gaps of a NOP, "
          f"p50 {statistics.median(waits):.0f} ms, max {max(waits):.0f} ms")
