#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reference answers, from float32 arithmetic, through the whole daemon.

KVD_TEST_ISA chooses the kernels (c, avx2, avx512, avx512vnni, amx; default: what the
daemon chooses). Tolerances are those of the README beside the cases. KVD_GOLDEN_SHARE=n takes n per
cent of each long answer and of the scored texts: the suite kern has all of them for AVX2
and up, and checkkern shows that plain C agrees with those to the bit.
"""
import json
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


def compare(case, got, errors, name, n=None):
    """Greedy tokens have to match for as long as the reference itself is sure."""
    want = [t for t in case["tokens"][:n] if t != EOS]
    equal(got["prompt_tokens"], len(case["prompt_tokens"]), f"{name}: prompt tokens")
    for i, token in enumerate(want):
        if case["margins"][i] <= 0.1:
            return i
        assert i < len(got["tokens"]), f"{name}: ends after {i} tokens"
        equal(got["tokens"][i], token, f"{name}: token {i}")
        errors.append(abs(got["logprobs"][i] - case["logprobs"][i]))
    return len(want)


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
            got = d.generate(case["user"], raw=False, tokens=len(case["tokens"]), logprobs=True)
            n = compare(case, got, errors, case["user"][:40])
            if n == len(case["tokens"]):
                equal(got["text"], case["text"], case["user"][:40])
        check_errors(errors)
        equal(d.generate("What is the capital of France?", raw=False)["text"],
              "The capital of France is Paris.", "the answer")


@limit(1800)
def test_text():
    golden = cases()
    with daemon() as d:
        errors = []
        for case in golden["generate"]["text"]:
            n = share_of(len(case["tokens"]))
            # As an argument or through stdin, a prompt is the same.
            got = json.loads(d.kvctl("generate", "--json", "--raw", "--logprobs",
                                     "--max-tokens", str(n), "-",
                                     text=case["prompt"], timeout=1500).stdout)
            compare(case, got, errors, case["prompt"][:40], n)
        check_errors(errors)


@limit(1800)
def test_score():
    golden = cases()
    with daemon() as d:
        errors = []
        for case in golden["score"][:share_of(len(golden["score"]))]:
            got = json.loads(d.kvctl("score", "--json", "-", text=case["text"],
                                     timeout=1500).stdout)
            equal(got["tokens"], case["tokens"], "tokens of the scored text")
            equal(len(got["logprobs"]), len(case["logprobs"]), "number of logprobs")
            errors += [abs(a - b) for a, b in zip(got["logprobs"], case["logprobs"])]
            ratio = got["perplexity"] / case["perplexity"]
            assert abs(ratio - 1) <= 0.005, f"perplexity {got['perplexity']}, ratio {ratio}"
        check_errors(errors)


def test_tokenize():
    golden = cases()
    with daemon() as d:
        for case in golden["tokenize"]:
            equal(d.tokenize(case["text"]), case["tokens"], repr(case["text"][:40]))


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
