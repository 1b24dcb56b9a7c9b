#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prefill of 512 tokens and decode of 128 through an ordinary client, beside llama.cpp.

usage: bench_model.py [--json] [--peer] [--rounds N]

Both run the same Q4_1 file on the same number of threads, alternately, and both stay
loaded. The peer runs with and without flash attention; the better of the two counts. All
values are medians; the ratio is made of medians of the same run. kvd's side is what
kvctl sees: prefill from the time to the first token of a prompt that is not cached,
decode from the tokens after the first.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "system"))
# pylint: disable=wrong-import-position
from kvdtest import MODEL, WORDS, Daemon  # noqa: E402

N_PREFILL, N_DECODE = 512, 128
THREADS = min(2, len(os.sched_getaffinity(0)))
# Floors and goals of the whole project, as times better than the peer.
TARGETS = {"prefill": (3.0, 7.0), "decode": (1.5, 2.5)}


class Peer:
    def __init__(self, python, flash, context=1024):
        self.name = f"llama.cpp, flash attention {'on' if flash else 'off'}"
        self.python, self.flash, self.context = python, flash, context
        self.start(extra=1)
        try:
            self.rate("prefill", 64)
        except (ValueError, BrokenPipeError):
            self.close()
            self.name += ", without AMX, which crashes it here"
            self.start(extra=0)
            self.rate("prefill", 64)

    def start(self, extra):
        self.process = subprocess.Popen(
            [self.python, os.path.join(HERE, "peer_llama.py"), MODEL, str(THREADS),
             str(int(self.flash)), str(self.context), str(extra)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "the peer did not start"

    def seconds(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def rate(self, what, n):
        return n / self.seconds(f"{what} {n}")

    def close(self):
        self.process.communicate()


def prompt_of(d, n_tokens, seed):
    """A text of exactly so many tokens, another one for each seed."""
    words = [f"Part {seed}"]
    i = seed
    while True:
        n = len(d.tokenize(" ".join(words)))
        if n == n_tokens:
            return " ".join(words)
        if n > n_tokens:
            words.pop()
            words.append("a")
            i += 1
            if len(d.tokenize(" ".join(words))) > n_tokens:
                words.pop()
                words.pop()
            continue
        step = max(1, (n_tokens - n) // 2)
        words += [WORDS[(i + k) * 7 % len(WORDS)] for k in range(step)]
        i += step


def ours(d, what, seed):
    if what == "prefill":
        prompt = prompt_of(d, N_PREFILL, seed)
        # Prompts begin alike for a few tokens, which would be found.
        d.kvctl("cache", "flush", "--yes")
        got = json.loads(d.kvctl("generate", "--json", "--raw", "--max-tokens", "1", "-",
                                 text=prompt).stdout)
        assert got["cached_tokens"] == 0 and got["prompt_tokens"] == N_PREFILL, got
        return N_PREFILL / (got["ttft_ms"] * 1e-3)
    got = json.loads(d.kvctl("generate", "--json", "--raw", "--ignore-eos", "--max-tokens",
                             str(N_DECODE + 1), "The").stdout)
    assert len(got["tokens"]) == N_DECODE + 1, got
    return got["tokens_per_s"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    python = os.path.join(os.environ.get("KVD_PEER_VENV", ""), "bin", "python")
    if args.peer and not os.access(python, os.X_OK):
        sys.exit("bench_model: --peer needs KVD_PEER_VENV, a Python environment that has "
                 "llama-cpp-python; ./dev bench model --peer makes one")
    peers = [Peer(python, flash) for flash in (True, False)] if args.peer else []
    rates = {}
    with Daemon({"cpu.threads": THREADS, "cache.kv_cache_memory": "512M"}) as d:
        backend = d.stats()["backend"]
        for turn in range(args.rounds + 1):
            for what, n in (("prefill", N_PREFILL), ("decode", N_DECODE)):
                runs = [("kvd", lambda w=what: ours(d, w, 1000 + turn))]
                runs += [(p.name, lambda p=p, w=what, n=n: p.rate(w, n)) for p in peers]
                # What runs first in one round runs last in the next.
                for name, run in runs[::1 if turn % 2 else -1]:
                    rate = run()
                    if turn > 0:  # the first round warms up
                        rates.setdefault((what, name), []).append(rate)
    for peer in peers:
        peer.close()
    if not args.json:
        print(f"kvd ({backend}), {THREADS} threads, {args.rounds} rounds, medians")
    for what, n in (("prefill", N_PREFILL), ("decode", N_DECODE)):
        value = statistics.median(rates[what, "kvd"])
        best = max(((statistics.median(rates[what, p.name]), p.name) for p in peers),
                   default=(None, None))
        ratio = value / best[0] if best[0] else None
        must, goal = TARGETS[what]
        if args.json:
            print(json.dumps({"bench": "model", "case": f"{what}-{n}", "value": round(value, 2),
                              "unit": "tok/s", "peer": best[1],
                              "peer_value": best[0] and round(best[0], 2),
                              "ratio": ratio and round(ratio, 3), "must": must, "goal": goal}))
        else:
            spread = sorted(rates[what, "kvd"])
            line = (f"{what:>8} of {n}: kvd {value:8.1f} tok/s"
                    f" ({spread[0]:.1f} to {spread[-1]:.1f})")
            for p in peers:
                line += f" | {p.name} {statistics.median(rates[what, p.name]):.1f}"
            print(line + (f" | ratio {ratio:.2f} (must {must}, goal {goal})" if ratio else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
