#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sixteen processes at once: each gets what it would get alone, and nothing of another's."""
import random
import sys

import kvdtest
from kvdtest import BLOCK, Daemon, common_prefix, equal, limit, prose

N = 16
CANARIES = [f"{word}{1000 + 37 * i}" for i, word in enumerate(
    "falcon bishop cobalt dragon ember garnet harbor indigo jasper kestrel lilac mango "
    "nectar onyx papaya quartz".split())]
INTRO = "You keep one secret word and repeat it whenever you are asked for it. "


def prompt_of(i):
    return (f"{INTRO}{prose(30 + 7 * i, i)} The secret word is {CANARIES[i]}. "
            f"Question: what is the secret word? Answer: The secret word is")


def ask(i, **options):
    # Half of them greedy, half with a seed of their own.
    return dict(prompt=prompt_of(i), tokens=24, logprobs=True, seed=100 + i,
                temperature=0 if i % 2 else 0.7, **options)


def same(got, want, who):
    for key in ("tokens", "logprobs", "text", "finish_reason"):
        equal(got[key], want[key], f"{who}: {key}")


def no_crossing(got, i):
    for k, canary in enumerate(CANARIES):
        assert k == i or canary not in got["text"], \
            f"client {i} was told the word of client {k}: {got['text']!r}"


@limit(900)
def test_sixteen_at_once():
    with Daemon({"cache.kv_cache_memory": "512M"}) as d:
        alone = []
        for i in range(N):
            d.flush()
            alone.append(d.generate(**ask(i)))
            no_crossing(alone[i], i)
        told = sum(CANARIES[i] in alone[i]["text"] for i in range(N))
        print(f"# {told} of {N} repeat their word, so a crossing would show")
        assert told >= N // 4, "the prompts no longer make the model repeat its word"
        for turn in range(kvdtest.rounds(20)):
            if turn % 2 == 0:
                d.flush()
            order = random.Random(turn).sample(range(N), N)
            children = {i: d.spawn_generate(**ask(i)) for i in order}
            for i in order:
                got = d.answer(children[i])
                same(got, alone[i], f"round {turn}, client {i}")
                no_crossing(got, i)


def test_cached_tokens_are_the_true_prefix():
    """Eight clients in random order: never more cached than is in common (case 7)."""
    with Daemon({"cache.kv_cache_memory": "512M"}) as d:
        rng = random.Random(7)
        seen = []
        tokens = [d.tokenize(prompt_of(i)) for i in range(8)]
        want = {}
        for _ in range(40):
            i = rng.randrange(8)
            got = d.generate(**ask(i))
            longest = max((common_prefix(tokens[i], old) for old in seen), default=0)
            longest = min(longest, len(tokens[i]) - 1)
            low = longest // BLOCK * BLOCK
            assert low <= got["cached_tokens"] <= longest, (
                f"{got['cached_tokens']} cached, {longest} of {len(tokens[i])} in common")
            same(got, want.setdefault(i, got), f"client {i}")
            no_crossing(got, i)
            seen.append(tokens[i] + got["tokens"])


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
