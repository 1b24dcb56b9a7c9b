#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where things are smallest, full or about to end: limits, tiny rings, stopping at work."""
import json
import os
import signal
import struct
import sys
import tempfile
import time

import kvdtest
from kvdtest import (BLOCK, BUILD, FAILED, NOT_RUNNING, SANITIZED, Daemon, equal, kill, limit,
                     prose, until)
from test_files import image, refused, write

TRICKLE = os.path.join(BUILD, "tests", "system", "trickle")
SMALL = {"cache.kv_cache_memory": "16M"}


def words(d, n):
    """A text of exactly n tokens."""
    text = "a" + " b" * (n - 1)
    equal(len(d.tokenize(text)), n, "tokens of the text")
    return text


def generate(d, text, tokens, status=kvdtest.OK):
    return d.kvctl("generate", "--json", "--raw", "--max-tokens", str(tokens), "-",
                   text=text, status=status)


def counts(d):
    return d.stats()["requests"]


@limit(300)
def test_longest_prompt_of_a_context():
    """The last length that fits gives one token; the next is refused with the limit."""
    with Daemon({**SMALL, "scheduler.max_model_len": "100"}) as d:
        got = json.loads(generate(d, words(d, 99), 8).stdout)
        equal(len(got["tokens"]), 1, "tokens after a prompt of 99")
        equal(got["finish_reason"], "length", "why it ended")
        for n in (100, 101, 4000):
            done = generate(d, words(d, n), 8, status=None)
            equal(done.returncode, FAILED, f"exit code for {n} tokens")
            assert f"({n} tokens; 100 is the limit)" in done.stderr, done.stderr
        equal(counts(d)["failed"], 3, "failed requests")


@limit(300)
def test_pool_smaller_than_the_context():
    with Daemon({"cache.kv_cache_memory": "2M"}) as d:
        fits = d.stats()["cache"]["blocks_total"] * BLOCK
        got = json.loads(generate(d, words(d, fits), 8).stdout)
        equal(len(got["tokens"]), 1, "tokens after a prompt that fills the pool")
        done = generate(d, words(d, fits + 1), 8, status=None)
        equal(done.returncode, FAILED, "exit code for one token more")
        assert f"({fits + 1} tokens; {fits} is the limit)" in done.stderr, done.stderr
        # Together they need more than there is: one waits for the other.
        both = [d.spawn_generate(prose(12, i), tokens=20) for i in range(4)]
        for child in both:
            equal(len(d.answer(child)["tokens"]), 20, "tokens of one of four")


@limit(300)
def test_long_texts():
    """Beyond 4 KiB a text becomes tokens on another thread: they are those of its words, and
    others are served meanwhile."""
    with Daemon(SMALL) as d:
        of_word = {" " + w: d.tokenize(" " + w) for w in kvdtest.WORDS}
        text = [" " + kvdtest.WORDS[i * i % len(kvdtest.WORDS)] for i in range(120000)]
        equal(d.tokenize("".join(text)), [t for w in text for t in of_word[w]],
              "tokens of a long text")
        done = generate(d, "".join(text), 1, status=None)
        assert f"({sum(len(of_word[w]) for w in text)} tokens; " in done.stderr, done.stderr
        # One word of a mebibyte, again and again, by two clients.
        word = "".join(chr(97 + i * i * 7 % 26) for i in range(1 << 20))
        probe = d.spawn_probe("nop")
        tokens = [d.tokenize(word) for _ in range(4)]
        got = d.probed(probe)
        equal(tokens[1:], tokens[:1] * 3, "tokens of a long word")
        print(f"# NOP beside a word of 1 MiB: median {got['p50_us']:.0f} us, p99 "
              f"{got['p99_us']:.0f} us; without waiting for a CPU p99 "
              f"{got['served_p99_us']:.0f} us, worst {got['served_max_us']:.0f} us")


@limit(300)
def test_every_end_is_counted_once():
    with Daemon(SMALL) as d:
        before = counts(d)
        n_cancelled = 3
        generate(d, "Hello", 3)
        generate(d, "", 3, status=None)
        children = [d.spawn_generate(prose(20, i), tokens=2000) for i in range(n_cancelled)]
        until(lambda: counts(d)["running"] == n_cancelled, 60, "all run")
        for child in children:
            child.kill()
            child.communicate()
        until(lambda: counts(d)["running"] == 0, 60, "none runs")
        after = counts(d)
        equal([after[k] - before[k] for k in ("completed", "failed", "cancelled")],
              [1, 1, n_cancelled], "completed, failed, cancelled")


@limit(600)
def test_rings_of_one_and_two():
    for entries in (1, 2):
        with Daemon(SMALL) as d:
            child = d.spawn([TRICKLE, str(entries), str(kvdtest.rounds(3))],
                            stdout=kvdtest.PIPE)
            out = child.communicate(timeout=500)[0].decode()
            equal((child.returncode, out), (0, ""), f"trickle with a CQ of {entries}")


@limit(600)
def test_a_client_that_never_reads_costs_nothing():
    with Daemon(SMALL) as d:
        # Every request gets its first token before it waits; sanitizers make that long.
        full = () if SANITIZED else ("sqfull",)
        children = [d.spawn_hostile(verb) for verb in ("noread", *full)]

        def rests():
            used = d.cpu_seconds()
            time.sleep(0.5)
            return d.cpu_seconds() - used <= 0.01

        until(rests, 400, "the daemon sleeps")
        for child in children:
            kill(child)


@limit(300)
def test_stopped_at_work():
    """SIGTERM with requests in every state: it ends well, and clients are told."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Daemon(SMALL) as d:
            children = [d.spawn_generate(prose(60, i), tokens=2000) for i in range(4)]
            for verb in ("noread", "prefill", "sqfull"):
                d.spawn_hostile(verb)
            until(lambda: counts(d)["running"] > 3, 60, "requests run")
            equal(d.stop(sig, timeout=120), 0, f"exit status after {sig}")
            for child in children:
                child.communicate(timeout=60)
                equal(child.returncode, NOT_RUNNING, "exit code of a client")
            assert "stopping" in d.log(), "no line about stopping"
            assert not os.path.exists(d.socket), "the socket is still there"


@limit(300)
def test_context_of_one():
    with tempfile.TemporaryDirectory() as folder:
        key = b"llama.context_length"
        data = image()
        struct.pack_into("<I", data, data.index(key) + len(key) + 4, 1)
        refused("a context of one", ["max_model_len"], folder, model=write(folder, data))


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
