#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What kvctl shows and tells: names that want to be something else, seeds, odd numbers,
reports that cannot be written."""
import json
import os
import sys
import tempfile
import unicodedata

import tinygguf
from kvdtest import Daemon, FAILED, USAGE, equal, run
from library import Client

# Of each kind one: direction, zero width, line ends, tags, private, no character; and what a
# terminal obeys anyhow. The library takes all of it out; a HELLO with it is refused.
ODD = "a\u202eb\u200bc\u2066d\ufeffe\u2028f\u00adg\U000e0041h\ue000i\uffffj\u061ck\x1bl\x9bm"
SEEN = "a?b?c?d?e?f?g?h?i?j?k?l?m"


def terminal_safe(text, what):
    for c in text:
        assert c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp", "Co", "Cn"), \
            f"U+{ord(c):04X} in {what}: {text!r}"


def test_names_cannot_pass_for_others():
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "odd.gguf"), tokenizer=True,
                                     name="m\u202eo\u200bd\u2029e\u2067l \u00e9\u4e2d")
        with Daemon(model=model) as d:
            client = Client(d, ODD[:60])
            for verb in (["clients"], ["top", "-b", "-n", "1"], ["stats"], ["status"],
                         ["doctor"], ["__complete", "models"], ["clients", "--json"],
                         ["stats", "--json"], ["top", "-b", "-n", "1", "--json"]):
                shown = d.kvctl(*verb, status=None).stdout
                terminal_safe(shown, " ".join(verb))
            table = d.kvctl("clients").stdout
            assert SEEN[:20] in table, table
            assert "m?o?d?e?l \u00e9\u4e2d" in d.kvctl("stats").stdout
            named = [c["name"] for c in json.loads(d.kvctl("clients", "--json").stdout)["clients"]]
            assert any(n.startswith(SEEN[:20]) for n in named), named
            # Columns stay where they are: each row has its numbers below the headings.
            head, *rows = table.splitlines()[:3]
            at = head.index("PID")
            assert all(row[at + 2].isdigit() for row in rows if row[:1].strip()), table
            client.close()


def test_each_run_draws_its_own_seed():
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "t.gguf"), tokenizer=True)
        with Daemon(model=model) as d:
            ask = ["generate", "--raw", "--json", "--max-tokens", "12", "--ignore-eos"]
            warm = ask + ["--temperature", "2"]
            told = [json.loads(d.kvctl(*warm, "a").stdout) for _ in range(4)]
            assert len({t["seed"] for t in told}) == 4, told
            assert len({tuple(t["tokens"]) for t in told}) > 1, told
            again = json.loads(d.kvctl(*warm, "--seed", str(told[0]["seed"]), "a").stdout)
            equal(again["tokens"], told[0]["tokens"], "the answer to the seed that was told")
            equal(json.loads(d.kvctl(*ask, "a").stdout)["seed"], 0, "seed without a choice")
            several = json.loads(d.kvctl(*warm, "-n", "2", "a").stdout)
            one, two = several["choices"]
            equal(two["seed"], one["seed"] + 1, "seed of the second of two")
            again = json.loads(d.kvctl(*warm, "--seed", str(two["seed"]), "a").stdout)
            equal(again["tokens"], two["tokens"], "the second of two")


def test_one_token_has_no_perplexity():
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "t.gguf"), tokenizer=True)
        with Daemon(model=model) as d:
            equal(d.kvctl("score", "q").stdout, "perplexity - over 1 token\n", "score of one")
            equal(json.loads(d.kvctl("score", "--json", "q").stdout)["perplexity"], None, "JSON")


def test_numbers_below_a_range():
    with Daemon(model="") as d:
        for option, value, words in (("--max-tokens", "-1", "-1 is not between 0 and"),
                                     ("--seed", "-5", "-5 is not between 0 and"),
                                     ("--max-tokens", "-x", "'-x' is not a whole number"),
                                     ("--max-tokens", "--1", "'--1' is not a whole number")):
            done = d.kvctl("generate", option, value, "x", status=USAGE)
            assert words in done.stderr, done.stderr


def test_library_names_the_option():
    """What the library refuses is told by kvctl in the library's words."""
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "t.gguf"), tokenizer=True)
        with Daemon(model=model) as d:
            text = "x" * ((1 << 20) + 1)
            for verb in ("tokenize", "score"):
                done = d.kvctl(verb, "-", text=text, status=FAILED)
                assert "1048577 bytes of text; kvd takes 1048576 at most" in done.stderr, \
                    done.stderr
            for more in ([], ["-n", "2"]):
                done = d.kvctl("generate", "--raw", *more, "-", text=text, status=FAILED)
                assert "1048577 bytes of text" in done.stderr, done.stderr


def test_report_that_cannot_be_written():
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "t.gguf"), tokenizer=True)
        with Daemon(model=model) as d:
            ask = ["generate", "--raw", "--max-tokens", "3", "--ignore-eos"]
            before = d.stats()["requests"]
            done = d.kvctl(*ask, "--report", os.path.join(folder, "no", "such"), "a",
                           status=FAILED)
            assert "cannot write" in done.stderr and not done.stdout, done
            equal(d.stats()["requests"], before, "requests that were made")
            path = os.path.join(folder, "report")
            with open(path, "w", encoding="utf-8") as f:
                f.write("x" * 10000)
            # A request that fails leaves the file as it was, or not there.
            d.kvctl("generate", "--raw", "--report", path, "-", text="y" * (2 << 20),
                    status=FAILED)
            equal(os.path.getsize(path), 10000, "bytes of a report that was not replaced")
            other = os.path.join(folder, "other")
            d.kvctl("generate", "--raw", "--report", other, "-", text="y" * (2 << 20),
                    status=FAILED)
            assert not os.path.exists(other)
            d.kvctl(*ask, "--report", path, "a")
            with open(path, encoding="utf-8") as f:
                equal(len(json.load(f)["tokens"]), 3, "tokens of the report")


if __name__ == "__main__":
    sys.exit(run(globals()))
