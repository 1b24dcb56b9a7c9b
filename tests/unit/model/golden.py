#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test program on the reference cases: golden.py PROGRAM [ARGUMENT...]

Writes golden.json as lines of words and numbers to a temporary file, and runs
PROGRAM MODEL FILE ARGUMENT... on it. Exits with 77 where the cases or the model are
missing. Found by $KVD_SHARED (default: the folder `shared` beside the source tree) and
$KVD_MODEL (default: the cache folder that ./dev fills).

  tokenize HEX n id*n
  chat     HEX n id*n n id*n logprob*n margin*n     user text, prompt, answer
  text     HEX n id*n n id*n logprob*n margin*n     prompt text, prompt, answer
  score    perplexity n id*n logprob*(n-1)

KVD_GOLDEN_SHARE=n takes the first n per cent only of each answer and each scored text.
"""
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile


def words(values):
    return " ".join(str(v) for v in values)


def counted(ids):
    return words([len(ids)] + ids)


def hexed(text):
    return text.encode().hex() or "-"


def shorten(golden, share):
    """All cases, of each answer and each scored text the first tokens."""
    def first(items):
        return items[:math.ceil(len(items) * share / 100)]

    for kind in ("chat", "text"):
        for case in golden["generate"][kind]:
            for name in ("tokens", "logprobs", "margins"):
                case[name] = first(case[name])
    for case in golden["score"]:
        case["tokens"] = first(case["tokens"])
        case["logprobs"] = case["logprobs"][:len(case["tokens"]) - 1]
        case["perplexity"] = math.exp(-sum(case["logprobs"]) / len(case["logprobs"]))


def convert(golden, out):
    for case in golden["tokenize"]:
        print("tokenize", hexed(case["text"]), counted(case["tokens"]), file=out)
    for kind, key in (("chat", "user"), ("text", "prompt")):
        for case in golden["generate"][kind]:
            print(kind, hexed(case[key]), counted(case["prompt_tokens"]),
                  counted(case["tokens"]), words(case["logprobs"]),
                  words(case["margins"]), file=out)
    for case in golden["score"]:
        print("score", case["perplexity"], counted(case["tokens"]),
              words(case["logprobs"]), file=out)


def main():
    root = os.path.dirname(os.path.abspath(__file__)) + "/../../.."
    shared = os.environ.get("KVD_SHARED", root + "/../shared")
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    model = os.environ.get(
        "KVD_MODEL", cache + "/kvd/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    cases = os.path.join(shared, "cases", "golden.json")
    for path in (cases, model):
        if not os.path.exists(path):
            print("skipped: no", path)
            return 77
    with open(cases, encoding="utf-8") as f:
        golden = json.load(f)
    share = int(os.environ.get("KVD_GOLDEN_SHARE", "100"))
    if share < 100:
        shorten(golden, share)
    with tempfile.NamedTemporaryFile("w", suffix=".golden") as out:
        convert(golden, out)
        out.flush()
        # The program may be of another machine.
        wrapper = shlex.split(os.environ.get("MESON_EXE_WRAPPER", ""))
        return subprocess.call(wrapper + [sys.argv[1], model, out.name] + sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
