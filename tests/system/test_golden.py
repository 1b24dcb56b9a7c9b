#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reference answers, from float32 arithmetic, through the whole daemon.

KVD_TEST_ISA chooses the kernels (c, avx2, avx512, avx512vnni, amx; default: what the
daemon chooses). Tolerances are those of the README beside the cases. Of an answer no more is
asked for than can be compared. KVD_GOLDEN_SHARE=n takes n per cent of each long answer and of
each scored text: the suite kern has all of them for AVX2 and up, and checkkern shows that
plain C agrees with those to the bit.
"""
import json
import math
import os
import sys

import kvdtest
from kvdtest import SHARED, Daemon, Skip, equal, limit

CASES = os.path.join(SHARED, "cases", "golden.json")
ISA = os.environ.get("KVD_TEST_ISA", "auto")
SHARE = int(os.environ.get("KVD_GOLDEN_SHARE", "100"))
EOS = 2
NEEDS = {"avx2": ["avx2", "fma", "f16c"],
         "avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl"],
         "avx512vnni": ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"],
         "amx": ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile",
                 "amx_bf16"]}


def cases():
    if not os.path.exists(CASES):
        raise Skip(f"no {CASES}; KVD_SHARED names the folder that holds cases/")
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        flags = next((line for line in f if line.startswith("flags")), "").split()
    for need in NEEDS.get(ISA, []):
        if need not in flags:
            raise Skip(f"this CPU has no {need}")
    with open(CASES, encoding="utf-8") as f:
        return json.load(f)


def share_of(n):
    return max(1, n * SHARE // 100)


def daemon():
    return Daemon({"cpu.isa": ISA})


def sure(case):
    """How many tokens of the answer, from its first on, the reference is sure of: what comes
    after an unsure one may be anything."""
    margins = case["margins"]
    return next((i for i, margin in enumerate(margins) if margin <= 0.1), len(margins))


def compare(case, got, errors, name, n):
    """The first n tokens of an answer."""
    equal(got["prompt_tokens"], len(case["prompt_tokens"]), f"{name}: prompt tokens")
    want = [t for t in case["tokens"][:n] if t != EOS]
    equal(got["tokens"][:len(want)], want, f"{name}: tokens")
    errors += [abs(a - b) for a, b in zip(got["logprobs"][:len(want)], case["logprobs"])]


def check_errors(errors):
    mean, worst = sum(errors) / len(errors), max(errors)
    print(f"# {len(errors)} logprobs: mean error {mean:.5f}, worst {worst:.4f}")
    assert mean <= 0.02, f"mean logprob error {mean}"
    assert worst <= 0.4, f"worst logprob error {worst}"


@limit(1800)
def test_chat():
    golden = cases()
    with daemon() as d:
        errors = []
        for case in golden["generate"]["chat"]:
            n, name = sure(case), case["user"][:40]
            got = d.generate(case["user"], raw=False, tokens=max(1, n), logprobs=True)
            compare(case, got, errors, name, n)
            if n == len(case["tokens"]):
                equal(got["text"], case["text"].removesuffix("<|im_end|>"), name)
        check_errors(errors)
        equal(d.generate("What is the capital of France?", raw=False)["text"],
              "The capital of France is Paris.", "the answer")


@limit(1800)
def test_text():
    golden = cases()
    with daemon() as d:
        errors = []
        for case in golden["generate"]["text"]:
            n = min(sure(case), share_of(len(case["tokens"])))
            # As an argument or through stdin, a prompt is the same.
            got = json.loads(d.kvctl("generate", "--json", "--raw", "--logprobs",
                                     "--max-tokens", str(max(1, n)), "-",
                                     text=case["prompt"], timeout=1500).stdout)
            compare(case, got, errors, case["prompt"][:40], n)
        check_errors(errors)


@limit(1800)
def test_score():
    golden = cases()
    with daemon() as d:
        errors = []
        for case in golden["score"]:
            text = case["text"][:share_of(len(case["text"]))]
            if SHARE < 100:
                text = text[:text.rindex(" ")]  # whole words have the same tokens
            got = json.loads(d.kvctl("score", "--json", "-", text=text, timeout=1500).stdout)
            n = len(got["tokens"])
            equal(got["tokens"], case["tokens"][:n], "tokens of the scored text")
            assert n >= len(case["tokens"]) * SHARE // 200, f"only {n} tokens"
            want = case["logprobs"][:n - 1]
            equal(len(got["logprobs"]), len(want), "number of logprobs")
            errors += [abs(a - b) for a, b in zip(got["logprobs"], want)]
            right = case["perplexity"] if SHARE == 100 else math.exp(-sum(want) / len(want))
            ratio = got["perplexity"] / right
            assert abs(ratio - 1) <= 0.005, f"perplexity {got['perplexity']}, ratio {ratio}"
        check_errors(errors)


def test_tokenize():
    golden = cases()
    with daemon() as d:
        for case in golden["tokenize"]:
            equal(d.tokenize(case["text"]), case["tokens"], repr(case["text"][:40]))


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
