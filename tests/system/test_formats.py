#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What each KV format promises: a hit has the bits of a cold run, whatever else goes on;
sizes are those of the manual; a model that a format cannot hold is refused."""
import math
import os
import struct
import subprocess
import tempfile

import kvdtest
import tinygguf
from kvdtest import BUILD, Daemon, equal, limit, rounds

MIX = os.path.join(BUILD, "tests", "system", "mix")
FORMATS = ["fp16", "int8", "int4", "fp8_e4m3", "k=int8,v=int4"]
# Every format, and both sizes of a block.
POOLS = [(name, 16) for name in FORMATS] + [("fp16", 32), ("int8", 32), ("int4", 32),
                                            ("k=int4,v=fp8_e4m3", 32)]
VOCAB, MAX_PROMPT = 96, 300
ECANCELED = -125
LONG = 7  # the seed of a mix whose first kind has a prompt of many blocks


class Models:
    """Tiny model files, made when they are asked for."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def __call__(self, **shape):
        name = "-".join(f"{k}{v}" for k, v in sorted(shape.items())) + ".gguf"
        path = os.path.join(self.folder.name, name)
        if not os.path.exists(path):
            tinygguf.write_model(path, n_vocab=VOCAB, **shape)
        return path


def pool(name, block, **more):
    return {"cache.kv_cache_dtype": name, "cache.block_size": block,
            "cache.kv_quality_check": "off", **more}


def mix(d, kinds, n, window, order=0, cancels=0, vocab=VOCAB, max_prompt=MAX_PROMPT, seed=1):
    """Run n requests; a list of (kind, res, cached tokens, answer as text)."""
    done = subprocess.run([MIX, *map(str, (seed, kinds, n, window, vocab, max_prompt, order,
                                           cancels))],
                          env=d.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="ascii", timeout=900)
    equal(done.returncode, 0, f"exit status of mix ({done.stderr.strip()})")
    answers = []
    for line in done.stdout.splitlines():
        kind, res, cached, *tokens = line.split(" ")
        answers.append((int(kind), int(res), int(cached), " ".join(tokens)))
    equal(len(answers), n, "answers")
    return answers


def compare(what, cold, answers):
    """Each answer is the cold one; a cancelled one is the beginning of it."""
    cached = cancelled = 0
    for kind, res, n_cached, text in answers:
        cached += n_cached
        if res == ECANCELED:
            cancelled += 1
            # on a token's boundary, or nothing yet
            assert (cold[kind][1] + " ").startswith(text and text + " "), \
                f"{what}: cancelled {kind}: {text!r}, alone {cold[kind][1]!r}"
            continue
        equal((res, text), cold[kind], f"{what}: request {kind}, {n_cached} tokens cached")
    return cached, cancelled


@limit(1800)
def test_hits_have_the_bits_of_a_cold_run():
    """2,500 requests for each pool against four hundred that each ran alone, on a
    daemon that shares nothing (cases 1, 2, 6)."""
    kinds = rounds(400)
    # what, options, requests for each hundred kinds, window, cancels
    runs = [
        ("many at once", {"scheduler.max_num_seqs": 16, "quota.max_running": 16}, 475, 24, 0),
        ("a full pool", {"cache.kv_cache_memory": "1M", "scheduler.max_num_seqs": 24, "quota.max_running": 24,
                         "scheduler.max_num_batched_tokens": 64}, 100, 40, 10),
        ("odd chunks", {"cache.kv_cache_memory": "2M", "scheduler.max_num_seqs": 7, "quota.max_running": 7,
                        "scheduler.max_num_batched_tokens": 37, "cpu.threads": 1}, 50, 9, 5),
    ]
    with Models() as models:
        for name, block in POOLS:
            with Daemon(pool(name, block, **{"cache.enable_prefix_caching": "no"}),
                        model=models()) as d:
                cold = {}
                for kind, res, n_cached, text in mix(d, kinds, kinds, 1):
                    assert res >= 0 and n_cached == 0, f"{name}: request {kind}: {res}"
                    cold[kind] = res, text
            for order, (what, options, share, window, cancels) in enumerate(runs, 1):
                with Daemon(pool(name, block, **options), model=models()) as d:
                    answers = mix(d, kinds, max(kinds * share // 100, 50), window, order,
                                  cancels)
                    cached, cancelled = compare(f"{name}, {block}, {what}", cold, answers)
                    stats = d.stats()["cache"]
                assert cached > 0, f"{name}: nothing was a hit"
                assert not cancels or cancelled > 0, f"{name}: nothing was cancelled"
                # a few dozen kinds fit into the smallest pool there is
                assert what != "a full pool" or kinds < 100 or stats["evicted_blocks"] > 0, \
                    f"{name}: no eviction"
                print(f"# {name}, blocks of {block}, {what}: {len(answers)} requests, "
                      f"{cached} tokens cached, {stats['evicted_blocks']} blocks evicted, "
                      f"{cancelled} cancelled")


@limit(900)
def test_one_prompt_two_hundred_times():
    """Equal answers all of them, equal to the first, which was cold (cases 1, 12)."""
    with Models() as models:
        for name in FORMATS:
            with Daemon(pool(name, 16), model=models()) as d:
                answers = mix(d, 1, rounds(200), 6, seed=LONG)
            equal(len({text for _, _, _, text in answers}), 1, f"{name}: answers")
            equal(answers[0][2], 0, f"{name}: cached tokens of the first")
            assert answers[-1][2] > 200, f"{name}: cached tokens of the last"


@limit(900)
def test_real_model():
    """The same on the default model, whose contexts reach over several spans."""
    kinds = rounds(12)
    more = {"vocab": 40000, "max_prompt": 600}
    for name in FORMATS[1:]:
        with Daemon(pool(name, 16, **{"cache.enable_prefix_caching": "no"})) as d:
            cold = {kind: (res, text)
                    for kind, res, _, text in mix(d, kinds, kinds, 4, **more)}
        with Daemon(pool(name, 16, **{"scheduler.max_num_batched_tokens": 100,
                                      "scheduler.max_num_seqs": 8, "quota.max_running": 8})) as d:
            answers = mix(d, kinds, 2 * kinds, 8, 1, **more)
            cached, _ = compare(name, cold, answers)
        print(f"# {name}: {len(answers)} requests, {cached} tokens cached")
        assert cached > 0, "nothing was a hit"


@limit(600)
def test_answers_make_sense():
    """The default model suits every format; fp16 and int8 give its golden answer, and each
    the same cold and as a hit."""
    for name in FORMATS:
        first = None
        with Daemon({"cache.kv_cache_dtype": name}) as d:
            equal(d.stats()["cache"]["format"], name, "format after the check of its quality")
            for _ in range(2):
                got = d.generate("What is the capital of France?", raw=False, tokens=32)
                if name in ("fp16", "int8"):
                    equal(got["text"], "The capital of France is Paris.", name)
                first = first or got
                equal(got["tokens"], first["tokens"], f"{name}: the hit's answer")


@limit(300)
def test_another_format_is_another_cache():
    """After a change of format nothing is a hit, and answers are those of the new format
    (case 16)."""
    with Models() as models:
        alone = {}
        for name in FORMATS:
            with Daemon(pool(name, 16), model=models()) as d:
                alone[name] = [a[3] for a in mix(d, 1, 2, 1, seed=LONG)]
        assert len({str(a) for a in alone.values()}) > 1, "no format makes any difference"
        with Daemon(pool("fp16", 16), model=models()) as d:
            for name in FORMATS + FORMATS[:1]:
                d.stop()
                d.options.update(pool(name, 16))
                d.start()
                answers = mix(d, 1, 2, 1, seed=LONG)
                equal(answers[0][2], 0, f"{name}: cached tokens of the first request")
                assert answers[1][2] > 0, f"{name}: no hit for the second"
                equal([a[3] for a in answers], alone[name], name)


# Bytes of a token and KV head of D dims in blocks of T tokens, parameters included.
HALF_BYTES = {
    "fp16": lambda d, t: 2 * d,
    "int8": lambda d, t: d + 4,
    "fp8_e4m3": lambda d, t: d + 2,
}
K_BYTES = {**HALF_BYTES, "int4": lambda d, t: d / 2 + (2 * d + 4) / t}
V_BYTES = {**HALF_BYTES, "int4": lambda d, t: d / 2 + 4}


def halves(name):
    parts = dict(part.split("=") for part in name.split(",")) if "=" in name else {}
    return parts.get("k", name), parts.get("v", name)


@limit(300)
def test_sizes_are_exact():
    memory = 64 << 20
    for name, block in POOLS:
        with Daemon(pool(name, block, **{"cache.kv_cache_memory": memory,
                                         "scheduler.max_num_seqs": 20, "quota.max_running": 20})) as d:
            stats = d.stats()
            status = d.kvctl("status").stdout
        cache, model = stats["cache"], stats["model"]
        k, v = halves(name)
        want = (K_BYTES[k](64, block) + V_BYTES[v](64, block)) * 30 * 3
        equal((model["n_layers"], model["n_kv_heads"], model["head_dim"]), (30, 3, 64), "shape")
        equal(cache["format"], name, "format in stats")
        assert name in status, f"{name} is not in kvctl status: {status!r}"
        equal(cache["bytes_per_token"], want, f"{name}, {block}: bytes per token")
        equal(cache["block_tokens"], block, "block_tokens")
        equal(cache["blocks_total"], memory // cache["block_bytes"], f"{name}: blocks")
        equal(cache["pool_bytes"], cache["blocks_total"] * cache["block_bytes"], "pool_bytes")
        padding = cache["block_bytes"] - block * want
        assert 0 <= padding < 64, f"{name}: {padding} bytes of padding in a block"
        tail = 30 * 3 * 64 * block * 2 * 2 if "int4" in name else 0
        equal(cache["tail_bytes"], 20 * tail, f"{name}: tail_bytes")


# The mean error of a logprob that a format may cause on the tiny models, whose weights are
# random and whose attention is as sharp as that of real ones.
ERROR = {"fp16": 0.0, "int8": 0.04, "fp8_e4m3": 0.15, "int4": 0.25, "k=int8,v=int4": 0.2}


def logprobs(answers):
    """For each kind the tokens and logprobs of a mix's answers."""
    found = {}
    for kind, _, _, text in answers:
        row = [t.split(":") for t in text.split(" ") if t]
        found[kind] = [(int(t), struct.unpack(">f", bytes.fromhex(b))[0]) for t, b in row]
    return found


@limit(900)
def test_head_dims():
    """Each size of a head, grouped or not, is right in each format, or refused by name
    (cases 50, 51)."""
    n = 16
    with Models() as models:
        for head_dim, n_kv_heads in ((64, 4), (64, 1), (80, 2), (96, 2), (112, 1), (128, 2),
                                     (192, 1), (256, 2), (8, 4), (24, 1), (100, 2), (36, 2)):
            model = models(head_dim=head_dim, n_kv_heads=n_kv_heads)
            exact = None
            for name in FORMATS:
                if head_dim % 8:
                    try:
                        Daemon(pool(name, 16), model=model).close()
                    except AssertionError as error:
                        assert "ended with 1 at its start" in str(error), str(error)
                        continue
                    raise AssertionError(f"head_dim {head_dim} was not refused")
                with Daemon(pool(name, 16), model=model) as d:
                    got = logprobs(mix(d, n, n, 8, seed=9))
                exact = exact or got
                errors = []
                for kind, row in got.items():
                    for (token, logprob), (want_token, want) in zip(row, exact[kind]):
                        if token != want_token:
                            break  # another answer: its context differs from here on
                        errors.append(abs(logprob - want))
                mean = sum(errors) / len(errors)
                print(f"# head_dim {head_dim}, 4:{n_kv_heads}, {name}: {len(errors)} logprobs, "
                      f"mean error {mean:.4f}, worst {max(errors):.3f}")
                assert all(map(math.isfinite, errors)), f"{head_dim}, {name}: not finite"
                assert mean <= ERROR[name], f"{head_dim}, {name}: mean error {mean:.4f}"


@limit(300)
def test_models_that_int4_hurts():
    """One is told, and gets int8, a refusal, or what was asked for (case 50)."""
    with Models() as models:
        sharp = models(sharpness=4.0)
        for name, better in (("int4", "int8"), ("k=int4,v=fp8_e4m3", "k=int8,v=fp8_e4m3")):
            for check, used in (("fallback", better), ("warn", name), ("off", name)):
                with Daemon(pool(name, 16, **{"cache.kv_quality_check": check}),
                            model=sharp) as d:
                    equal(d.stats()["cache"]["format"], used, f"format with {check}")
                    lines = [x for x in d.log().splitlines() if "KL" in x]
                equal(len(lines), 0 if check == "off" else 1, f"lines about it with {check}")
                assert not lines or name in lines[0] and better in lines[0], lines
            try:
                Daemon(pool(name, 16, **{"cache.kv_quality_check": "refuse"}),
                       model=sharp).close()
            except AssertionError as error:
                assert "ended with 1 at its start" in str(error), str(error)
            else:
                raise AssertionError(f"{name} was not refused")
        with Daemon(pool("int8", 16, **{"cache.kv_quality_check": "refuse"}),
                    model=sharp) as d:
            equal(d.stats()["cache"]["format"], "int8", "format")


if __name__ == "__main__":
    kvdtest.run(globals())
