#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What one process has computed is a hit for the next, and changes no bit of its answer."""
import os
import shutil
import statistics
import sys
import tempfile
import threading

import kvdtest
from kvdtest import BLOCK, MODEL, Daemon, common_prefix, equal, limit, prose, shared_prompt, until

CHEAP = {"cache.kv_cache_memory": "512M"}


def system_prompt(seed):
    """About a thousand tokens that no earlier round has seen."""
    return f"Handbook number {seed}.\n" + shared_prompt()


def two_askers(d, seed, first, second):
    """(shared tokens, answer of the first, answer of the second) for one new prompt."""
    system = system_prompt(seed)
    prompts = [f"{system}\n\nQuestion: {q}\nAnswer:" for q in (first, second)]
    shared = common_prefix(*(d.tokenize(p) for p in prompts))
    return shared, prompts


@limit(600)
def test_second_process_hits():
    with Daemon(CHEAP) as d:
        ratios = []
        for seed in range(5):
            shared, prompts = two_askers(d, seed, "Who resets passwords?", "How is toner ordered?")
            assert shared > 900, f"the prompt shares only {shared} tokens"
            cold = d.generate(prompts[0])
            before = d.stats()["cache"]
            warm = d.generate(prompts[1])
            after = d.stats()["cache"]
            assert cold["cached_tokens"] < BLOCK, f"cold run: {cold['cached_tokens']} cached"
            assert warm["cached_tokens"] >= 0.9 * shared, \
                f"{warm['cached_tokens']} of {shared} shared tokens cached"
            assert warm["cached_tokens"] <= shared, "more cached than there is in common"
            equal(after["shared_hit_tokens"] - before["shared_hit_tokens"],
                  warm["cached_tokens"], "growth of shared_hit_tokens")
            equal(after["hit_tokens"] - before["hit_tokens"], warm["cached_tokens"],
                  "growth of hit_tokens")
            ratios.append(warm["ttft_ms"] / cold["ttft_ms"])
        print("# TTFT of the second over that of the first:",
              " ".join(f"{r:.3f}" for r in ratios))
        assert statistics.median(ratios) <= 0.1, f"TTFT ratios {ratios}"


@limit(600)
def test_hit_while_the_first_decodes():
    with Daemon(CHEAP) as d:
        ratios = []
        for seed in range(10, 10 + max(3, kvdtest.rounds(5))):
            shared, prompts = two_askers(d, seed, "Name all rooms.", "Who is Marta?")
            generated = d.stats()["tokens"]["generated"]
            first = d.spawn_generate(prompts[0], tokens=400, temperature=1)
            until(lambda: d.stats()["tokens"]["generated"] > generated + 2, 60,
                  "the first client decodes")
            second = d.generate(prompts[1], tokens=4)
            running = first.poll() is None
            cold = d.answer(first)
            assert second["cached_tokens"] >= 0.9 * shared, \
                f"{second['cached_tokens']} of {shared} shared tokens cached"
            if running:
                ratios.append(second["ttft_ms"] / cold["ttft_ms"])
        print("# TTFT ratios:", " ".join(f"{r:.3f}" for r in ratios))
        assert ratios, "the first client was never still decoding"
        assert statistics.median(ratios) <= 0.1, f"TTFT ratios {ratios}"


IDENTITY_PROMPTS = [prose(n, n) for n in (2, 9, 11, 12, 40, 130, 300, 520)]


def bits(d, prompt, **more):
    got = d.generate(prompt, tokens=16, logprobs=True, **more)
    return got["tokens"], got["logprobs"], got["finish_reason"]


@limit(900)
def test_hit_gives_the_bits_of_a_cold_run():
    def ask_all(options, hit=False, together=False):
        with Daemon({**CHEAP, **options}) as d:
            def one(i):
                # Greedy and sampled in turn.
                got[i] = bits(d, IDENTITY_PROMPTS[i], temperature=0.9 * (i % 2), seed=7)

            got = [None] * len(IDENTITY_PROMPTS)
            for _ in range(2 if hit else 1):
                if together:
                    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(got))]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                else:
                    for i in range(len(got)):
                        one(i)
            if hit:
                assert d.stats()["cache"]["hit_tokens"] > 0, "nothing was a hit"
            return got

    cold = ask_all({"cache.enable_prefix_caching": "false"})
    for what, options, more in (
            ("hit", {}, {"hit": True}),
            ("chunks of 32", {"scheduler.max_num_batched_tokens": 32,
                              "scheduler.max_num_seqs": 16, "quota.max_running": 16}, {}),
            ("chunks of 100, hit", {"scheduler.max_num_batched_tokens": 100,
                                    "scheduler.max_num_seqs": 16, "quota.max_running": 16}, {"hit": True}),
            ("eight at once, cold and hit", {}, {"together": True, "hit": True}),
            ("eight at once", {}, {"together": True}),
            ("one thread", {"cpu.threads": 1}, {})):
        got = ask_all(options, **more)
        for i, prompt in enumerate(IDENTITY_PROMPTS):
            equal(got[i], cold[i], f"{what}, {prompt[:12]}")


def test_hits_do_not_depend_on_the_process():
    """Keys hold no random seed: the same after a restart of the daemon (case 45)."""
    prompt = prose(200, 45)
    with Daemon(CHEAP) as d:
        n = len(d.tokenize(prompt))
        for _ in range(2):
            equal(d.generate(prompt, tokens=1)["cached_tokens"], 0, "cold")
            hit = d.generate(prompt, tokens=1)["cached_tokens"]
            blocks = (n - 1) // BLOCK
            assert hit >= (blocks - 1) * BLOCK and hit < n, f"{hit} of {n} tokens hit"
            d.stop()
            d.start()


@limit(600)
def test_same_prompt_many_times():
    """200 equal answers, equal to a cold one (cases 1 and 12)."""
    prompt = prose(60, 1)
    with Daemon({**CHEAP, "cache.enable_prefix_caching": "false"}) as d:
        cold = bits(d, prompt)
    with Daemon(CHEAP) as d:
        for i in range(kvdtest.rounds(200)):
            equal(bits(d, prompt), cold, f"answer {i}")


def test_other_weights_are_another_model():
    """One flipped weight under the same name: no hit, another fingerprint (case 14)."""
    prompt = prose(100, 14)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(MODEL))
        shutil.copyfile(MODEL, copy)
        with Daemon(CHEAP, model=copy) as d:
            first = d.stats()["model"]
            equal(d.generate(prompt)["cached_tokens"], 0, "cold")
            d.stop()
            with open(copy, "r+b") as f:
                f.seek(-1000, os.SEEK_END)
                byte = f.read(1)[0]
                f.seek(-1000, os.SEEK_END)
                f.write(bytes([byte ^ 0x10]))
            d.start()
            second = d.stats()["model"]
            equal(second["name"], first["name"], "name of the model")
            assert second["fingerprint"] != first["fingerprint"], "fingerprint ignores weights"
            equal(d.generate(prompt)["cached_tokens"], 0, "tokens cached for other weights")


def test_eviction_changes_nothing():
    """A pool that holds a few prompts only: everything is evicted, no answer changes."""
    prompts = [prose(150, 900 + i) for i in range(16)]
    with Daemon(CHEAP) as d:
        want = [bits(d, p) for p in prompts]
    with Daemon({"cache.kv_cache_memory": "24M"}) as d:
        for turn in range(2):
            for i, prompt in enumerate(prompts):
                equal(bits(d, prompt), want[i], f"turn {turn}, prompt {i}")
        assert d.stats()["cache"]["evicted_blocks"] > 0, "nothing was evicted"


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
