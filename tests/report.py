#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tables for ./dev: what meson's logs say about the suites, what a demo measured.

usage: report.py tests FOLDER           counts; exit status 1 when anything failed
       report.py demo [--json] FOLDER   first.json, second.json and stats.json there
"""
import json
import os
import re
import sys

CHECK_LINE = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)$", re.M)
# A part that a libcheck program left out; the test around it counts as passed.
SKIPPED_LINE = re.compile(r"^skipped: ", re.M)
# Why a test did nothing where the CPU is another one; said apart, for it hides what others run.
CPU_LINE = re.compile(r"this CPU has no (\w+)")
TAP_LINE = re.compile(r"^(not )?ok\b[^#\n]*(# ?skip)?", re.M | re.I)
ORDER = ["lint", "unit", "sim", "kern", "types", "abi", "quick", "system", "asan-unit", "asan-abi",
         "asan-system", "fuzz", "container", "arm64-unit", "arm64-kern", "vm"]


def count(test):
    """(passed, failed, skipped) of one meson test, by the cases inside it where it
    prints them (libcheck's summary, TAP), else as one."""
    out = test.get("stdout") or ""
    passed = failed = skipped = 0
    checks = CHECK_LINE.findall(out)
    if checks:
        for n, failures, errors in checks:
            failed += int(failures) + int(errors)
            passed += int(n) - int(failures) - int(errors)
        skipped = len(SKIPPED_LINE.findall(out))
    elif re.search(r"^1\.\.\d", out, re.M):
        for bad, skip in TAP_LINE.findall(out):
            if bad:
                failed += 1
            elif skip:
                skipped += 1
            else:
                passed += 1
    result = test["result"]
    if result == "SKIP":
        return 0, 0, 1
    if result in ("OK", "EXPECTEDFAIL"):
        # A suite that passed as a whole has no failure in it.
        return (passed or (0 if skipped else 1)), failed, skipped
    return passed, max(failed, 1), skipped


def report_tests(folder):
    total = [0, 0, 0]
    failures = []
    lacking = {}
    times = []
    names = sorted(os.listdir(folder) if os.path.isdir(folder) else [],
                   key=lambda n: ORDER.index(n[:-5]) if n[:-5] in ORDER else 99)
    print(f"\n{'suite':<12} {'tests':>6} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for name in names:
        suite = [0, 0, 0]
        seconds = 0.0
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            tests = [json.loads(line) for line in f if line.strip()]
        for test in tests:
            counted = count(test)
            for feature in CPU_LINE.findall(test.get("stdout") or "")[:1] if counted[2] else []:
                lacking[feature] = lacking.get(feature, 0) + counted[2]
            seconds += test.get("duration", 0.0)
            times.append((test.get("duration", 0.0), f"{name[:-5]}: {test['name']}"))
            for i in range(3):
                suite[i] += counted[i]
                total[i] += counted[i]
            if counted[1]:
                failures.append(f"{name[:-5]}: {test['name']} ({test['result']})")
        print(f"{name[:-5]:<12} {len(tests):>6} {suite[0]:>7} {suite[1]:>7} {suite[2]:>8}"
              f" {seconds:>8.1f}")
    print(f"{'all':<12} {len(times):>6} {total[0]:>7} {total[1]:>7} {total[2]:>8}"
          f" {sum(time for time, _ in times):>8.1f}")
    print("\nthe slowest:")
    for time, test in sorted(times, reverse=True)[:10]:
        print(f"{time:>8.1f} s  {test}")
    for line in failures:
        print(f"FAILED  {line}")
    if sum(total) == 0:
        # No log at all: the build or the test runner broke before any test ran.
        total[1] = 1
        print("FAILED  no test ran")
    for feature, n in sorted(lacking.items()):
        print(f"SKIPPED {n} for want of a CPU with {feature}")
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


def report_demo(folder, as_json):
    def load(name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)

    stats = load("stats.json")
    rows = {}
    for name in ("first", "second"):
        got = load(name + ".json")
        rows[name] = {key: got[key] for key in
                      ("prompt_tokens", "cached_tokens", "ttft_ms", "tokens_per_s")}
        rows[name]["answer"] = got["text"]
    print(f"\n{'':<8} {'prompt tokens':>13} {'cached tokens':>13} {'TTFT ms':>9} {'tokens/s':>9}")
    for name, row in rows.items():
        print(f"{name:<8} {row['prompt_tokens']:>13} {row['cached_tokens']:>13}"
              f" {row['ttft_ms']:>9.1f} {row['tokens_per_s']:>9.1f}")
    cache = stats["cache"]
    used = cache["blocks_cached"] + cache["blocks_active"]
    size = cache["block_bytes"] / 1048576
    print(f"\npool     {used} of {cache['blocks_total']} blocks in use"
          f" ({used * size:.1f} of {cache['blocks_total'] * size:.0f} MiB, {cache['format']});"
          f" {cache['shared_hit_tokens']} tokens came from another process")
    if as_json:
        print(json.dumps({**rows, "stats": stats}))
    return 0


def main(argv):
    if len(argv) == 3 and argv[1] == "tests":
        return report_tests(argv[2])
    if len(argv) in (3, 4) and argv[1] == "demo":
        return report_demo(argv[-1], "--json" in argv)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
