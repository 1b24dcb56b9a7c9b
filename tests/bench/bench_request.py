#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a request costs beyond the steps of the model.

usage: bench_request.py [--json] [--rounds N]

A prompt of 16 tokens that is cached asks for one token, and for nine, by turns. Eight steps
are what the two differ by; what one step leaves of the first is submission, scheduling,
sampling and completion. `asleep`: daemon and client slept before, and a halted CPU has to
wake; `awake`: one request follows the other. Medians over the rounds, of the median in each.
The peer is llama.cpp's HTTP server as the project's targets record it, not of this run.
"""
import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "system"),
                os.path.join(os.path.dirname(HERE), "eval")]
# pylint: disable=wrong-import-position
from binding import Client  # noqa: E402
from kvdtest import BUILD, Daemon  # noqa: E402

PEER_MS = 1.02
REPEATS, STEPS = 40, 8
NAP_S = 0.003
CASES = {"asleep": (NAP_S, 10, 10), "awake": (0, 10, 100)}


def seconds(client, prompt, n, nap):
    """The median time of a request for n tokens."""
    times = []
    for _ in range(REPEATS):
        time.sleep(nap)
        start = time.perf_counter()
        client.generate(prompt, n, ignore_eos=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def overhead_ms(client, prompt, nap):
    one = seconds(client, prompt, 1, nap)
    step = (seconds(client, prompt, 1 + STEPS, nap) - one) / STEPS
    return 1e3 * (one - step), 1e3 * step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with Daemon({"cpu.threads": 2}) as d:
        client = Client(os.path.join(BUILD, "client", "libkvclient.so"), d.socket, 0)
        prompt = list(range(1000, 1016))
        client.generate(prompt, 1, ignore_eos=True)
        for case, (nap, must, goal) in CASES.items():
            rounds = [overhead_ms(client, prompt, nap) for _ in range(args.rounds)]
            value = statistics.median(r[0] for r in rounds)
            step = statistics.median(r[1] for r in rounds)
            ratio = PEER_MS / value
            if args.json:
                print(json.dumps({"bench": "request", "case": case, "value": round(value, 4),
                                  "unit": "ms", "peer": "llama.cpp over HTTP, recorded",
                                  "peer_value": PEER_MS, "ratio": round(ratio, 2),
                                  "must": must, "goal": goal}), flush=True)
            else:
                print(f"{case:>7}: {value:.3f} ms beside a step of {step:.2f} ms | llama.cpp "
                      f"over HTTP, recorded {PEER_MS} ms | ratio {ratio:.1f} (must {must}, "
                      f"goal {goal})", flush=True)
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
