#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Long contexts and shared prefixes through ordinary clients, beside llama.cpp.

usage: bench_context.py [--json] [--peer] [--rounds N] [--format F]... [--depth N]
                        [--case NAME]...

  decode     tok/s of one sequence at --depth tokens of context, in each format
  prompt     16 sequences of one 512-token prompt, tok/s summed
  prefix     16 client processes, each with its own question after one prefix of 2,048
             tokens, tok/s summed
  ttft       ms to the first token of a prompt of 1,500 tokens that is cached
  ttft-busy  the same for a second client while the first, which asked first, still decodes

Values are medians over the rounds; kvd and the peer take turns. The peer keeps its cache
in f16, which is its fastest, and is spared all transport: it is called in its own process,
its sequences share cells as its library allows, and its time for ttft is one token on top
of a context that it already holds. For ttft-busy it has to compute the prompt, as its
server does.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "system"))
# pylint: disable=wrong-import-position
from bench_model import THREADS, Peer, prompt_of  # noqa: E402
from kvdtest import Daemon, until  # noqa: E402

FORMATS = ["fp16", "int8", "int4", "fp8_e4m3"]
CLIENTS, N_DECODE = 16, 32
# Must and goal of the project, as times better than the peer.
TARGETS = {"decode": (3, 5), "prompt": (3, 8), "prefix": (4, 10), "ttft": (2, 6),
           "ttft-busy": (100, 500)}


def generate(d, prompt, n, ask=None):
    return json.loads(d.kvctl("generate", "--json", "--raw", "--ignore-eos", "--max-tokens",
                              str(n), "-", text=prompt + (ask or ""), timeout=1800).stdout)


def together(d, prompts, n):
    """Tokens a second, summed, of clients that run side by side on cached prompts."""
    got = [None] * len(prompts)

    def one(i):
        got[i] = generate(d, prompts[i], n)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(a["tokens_per_s"] for a in got)


class Kvd:
    """One round of each case; prompts are new in each round."""

    def __init__(self, d, depth):
        self.d, self.depth = d, depth
        self.deep = None

    def decode(self, _turn):
        if self.deep is None:
            self.deep = prompt_of(self.d, self.depth, 1)
            generate(self.d, self.deep, 1)
        got = generate(self.d, self.deep, N_DECODE + 1)
        assert got["cached_tokens"] >= self.depth - 16, got["cached_tokens"]
        return got["tokens_per_s"]

    def prompt(self, turn):
        prompt = prompt_of(self.d, 512, 100 + turn)
        generate(self.d, prompt, 1)
        return together(self.d, [prompt] * CLIENTS, N_DECODE + 1)

    def prefix(self, turn):
        prompt = prompt_of(self.d, 2048, 200 + turn)
        generate(self.d, prompt, 1)
        return together(self.d, [f"{prompt} Question {i}: what comes {i} words later?"
                                 for i in range(CLIENTS)], N_DECODE + 1)

    def ttft(self, turn):
        prompt = prompt_of(self.d, 1500, 300 + turn)
        generate(self.d, prompt, 1)
        return generate(self.d, prompt, 1)["ttft_ms"]

    def ttft_busy(self, turn):
        prompt = prompt_of(self.d, 1500, 400 + turn)
        before = self.d.stats()["tokens"]["generated"]
        first = self.d.spawn_generate(prompt, tokens=600, temperature=1)
        until(lambda: self.d.stats()["tokens"]["generated"] > before + 2, 300, "a first token")
        got = generate(self.d, prompt, 1)
        assert first.poll() is None, "the first client was done too soon"
        assert got["cached_tokens"] >= 1400, got["cached_tokens"]
        first.kill()
        first.wait()
        return got["ttft_ms"]


def peer_value(peer, case, depth):
    """In the unit of the case."""
    if case == "decode":
        return N_DECODE / peer.seconds(f"depth {depth} {N_DECODE}")
    if case in ("prompt", "prefix"):
        n = 512 if case == "prompt" else 2048
        return CLIENTS * N_DECODE / peer.seconds(f"shared {n} {CLIENTS} {N_DECODE}")
    return 1e3 * peer.seconds("depth 1500 1" if case == "ttft" else "prefill 1500")


def report(args, case, name, values, peer_values):
    value = statistics.median(values)
    peer = statistics.median(peer_values) if peer_values else None
    less = case.startswith("ttft")
    ratio = peer and (peer / value if less else value / peer)
    unit = "ms" if less else "tok/s"
    must, goal = TARGETS[case]
    label = f"{case}-{args.depth}-{name}" if case == "decode" else f"{case}-{name}"
    if args.json:
        print(json.dumps({"bench": "context", "case": label, "value": round(value, 2),
                          "unit": unit, "peer": "llama.cpp, f16" if peer else None,
                          "peer_value": peer and round(peer, 2),
                          "ratio": ratio and round(ratio, 3), "must": must, "goal": goal}),
              flush=True)
        return
    line = f"{label:>24}: kvd {value:9.1f} {unit}"
    if peer:
        line += f" | llama.cpp {peer:.1f} | ratio {ratio:.2f} (must {must}, goal {goal})"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", action="append")
    parser.add_argument("--case", action="append", choices=list(TARGETS))
    parser.add_argument("--depth", type=int, default=7168)
    args = parser.parse_args()
    python = os.path.join(os.environ.get("KVD_PEER_VENV", ""), "bin", "python")
    if args.peer and not os.access(python, os.X_OK):
        sys.exit("bench_context: --peer needs KVD_PEER_VENV; ./dev bench context --peer "
                 "makes one")
    peer = Peer(python, True, context=max(args.depth, 4096) + 1024) if args.peer else None
    known = {}
    for name in args.format or FORMATS:
        with Daemon({"cpu.threads": THREADS, "cache.kv_cache_dtype": name,
                     "cache.kv_cache_memory": "1G"}) as d:
            kvd = Kvd(d, args.depth)
            for case in args.case or TARGETS:
                # Other than at depth, formats hardly differ: the first one stands for all.
                if case != "decode" and name != (args.format or FORMATS)[0]:
                    continue
                values, theirs = [], []
                for turn in range(args.rounds):
                    values.append(getattr(kvd, case.replace("-", "_"))(turn))
                    if peer and case not in known:
                        theirs.append(peer_value(peer, case, args.depth))
                known.setdefault(case, theirs)
                report(args, case, name, values, known[case])
    if peer:
        peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
