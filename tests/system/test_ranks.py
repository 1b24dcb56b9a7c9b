#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A model that is spread over several devices, through the whole daemon.

The default model has 3 KV heads, so it is three of them. Reference answers and tolerances are
those of test_golden.py.
"""
import subprocess
import sys

import kvdtest
from kvdtest import Daemon, equal, limit
from test_golden import cases, check_errors, compare

RANKS = {"model.tensor_parallel_size": 3}


@limit(900)
def test_answers_are_the_reference():
    golden = cases()
    with Daemon(RANKS) as d:
        errors = []
        for case in golden["generate"]["chat"][:3]:
            got = d.generate(case["user"], raw=False, tokens=min(24, len(case["tokens"])),
                             logprobs=True)
            compare(case, got, errors, case["user"][:40], 24)
        check_errors(errors)


@limit(900)
def test_chunks_and_hits_change_nothing():
    text = cases()["score"][0]["text"][:1200]
    answers = []
    for options in {}, {"scheduler.max_num_batched_tokens": 16,
                         "scheduler.max_num_seqs": 8, "quota.max_running": 8}:
        with Daemon({**RANKS, **options}) as d:
            for hit in False, True:
                got = d.generate(text, tokens=8, logprobs=True)
                equal(got["cached_tokens"] > 0, hit, "a hit")
                answers.append((got["tokens"], got["logprobs"]))
    for other in answers[1:]:
        equal(other, answers[0], "the same bits")


@limit(300)
def test_sizes_are_those_of_the_whole():
    sizes = []
    for options in {}, RANKS:
        with Daemon(options) as d:
            stats = d.stats()
            sizes.append([stats["cache"][key] for key in
                          ("block_bytes", "bytes_per_token", "blocks_total")])
    equal(sizes[1], sizes[0], "three ranks have the blocks of one")


@limit(300)
def test_what_cannot_be_divided_is_refused():
    d = Daemon({"model.tensor_parallel_size": 2}, start=False)
    try:
        got = subprocess.run(d.command(), capture_output=True, text=True, timeout=120,
                             check=False)
    finally:
        d.close()
    equal(got.returncode != 0, True, "a start that failed")
    assert "3 KV heads" in got.stderr and "[model] tensor_parallel_size" in got.stderr, got.stderr


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
