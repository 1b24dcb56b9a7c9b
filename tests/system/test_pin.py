#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pinned and public prefixes, and flushing one prefix."""
import json
import os
import sys

import kvdtest
from kvdtest import BUSY, FAILED, NOT_FOUND, OK, PERMISSION, USAGE, equal, limit, prose
from test_users import ALICE, BOB, open_daemon

SYSTEM = "You answer in rhymes. " + prose(120, 77)


def cache(d, *args, status=OK, **who):
    done = d.kvctl("cache", *args, "--json", status=status, **who)
    return json.loads(done.stdout) if done.stdout else None


def prefixes(d, **who):
    return cache(d, "ls", **who)["prefixes"]


def pinned(d, **who):
    return [p for p in prefixes(d, **who) if p["pins"]]


def flood(d, n):
    """Prompts that nobody asks twice, more than the pool holds."""
    for i in range(n):
        d.generate(prose(300, 5000 + i), tokens=1)


@limit(600)
def test_a_pin_outlives_a_flood_and_flushes():
    prompt = prose(300, 8)
    with open_daemon({"cache.kv_cache_memory": "24M"}) as d:
        cold = d.generate(prompt, logprobs=True)
        whole = cache(d, "pin", "--prefix", prompt)["tokens"]
        assert whole % 16 == 0 and cold["prompt_tokens"] - whole < 16, f"{whole} tokens pinned"
        equal([(p["tokens"], p["kept"]) for p in pinned(d)], [(whole, "pinned")], "pins listed")
        equal(cache(d, "pin", "--prefix", prompt)["tokens"], whole, "pinned twice")
        equal(d.stats()["cache"]["blocks_pinned"], whole // 16, "blocks pinned")
        flood(d, 8)
        assert d.stats()["cache"]["evicted_blocks"] > 0, "the flood was too small"
        counts = json.loads(d.kvctl("cache", "flush", "--yes", "--json").stdout)
        equal((counts["kept_pinned"], counts["remaining"]), (whole // 16, 0), "flush")
        counts = cache(d, "flush", "--yes", "--prefix", prompt)
        assert counts["flushed_blocks"] == 0 and counts["kept_pinned"] > 0, counts
        warm = d.generate(prompt, logprobs=True)
        assert warm["cached_tokens"] >= whole - 16, f"{warm['cached_tokens']} of {whole} stayed"
        for key in ("tokens", "logprobs", "text"):
            equal(warm[key], cold[key], key)
        equal(cache(d, "unpin", "--prefix", prompt)["tokens"], whole, "tokens unpinned")
        cache(d, "unpin", "--prefix", prompt, status=NOT_FOUND)
        equal((pinned(d), d.stats()["cache"]["blocks_pinned"]), ([], 0), "pins left")
        d.flush()
        equal(d.generate(prompt)["cached_tokens"], 0, "tokens cached after unpin and flush")


def test_pins_leave_room():
    with open_daemon({"cache.kv_cache_memory": "24M"}) as d:
        total = d.stats()["cache"]["blocks_total"]
        for i in range(total):
            if d.kvctl("cache", "pin", "--prefix", prose(120, 900 + i),
                       status=None).returncode != OK:
                break
        cache(d, "pin", "--prefix", prose(400, 33), status=BUSY)
        n = d.stats()["cache"]["blocks_pinned"]
        assert 0 < n <= total // 2, f"{n} of {total} blocks pinned"
        d.generate(prose(60, 4))
        for p in pinned(d):
            cache(d, "unpin", "--id", p["id"])
        equal(d.stats()["cache"]["blocks_pinned"], 0, "blocks pinned at the end")


def test_who_may_pin():
    prompt = prose(100, 12)
    with open_daemon() as d:
        d.generate(prompt, **ALICE)
        cache(d, "pin", "--prefix", prompt, status=PERMISSION, **ALICE)
        mine = prefixes(d, **ALICE)[0]["id"]
        cache(d, "pin", "--id", mine, status=PERMISSION, **ALICE)
        cache(d, "unpin", "--id", mine, status=PERMISSION, **ALICE)
        # An administrator pins what is another user's: it stays that user's.
        # Whole blocks stay, not the rows of the last one, which may be written yet.
        equal(cache(d, "pin", "--id", mine)["tokens"] % 16, 0, "tokens beside whole blocks")
        held = pinned(d)[0]["id"]
        counts = cache(d, "flush", "--yes", "--prefix", prompt, **ALICE)
        assert counts["kept_pinned"] > 0 and counts["flushed_blocks"] <= 1, counts
        equal(d.generate(prompt, **BOB)["cached_tokens"], 0, "tokens cached for another user")
        assert d.generate(prompt, **ALICE)["cached_tokens"] > 0, "the owner lost it"
        for wrong in ("", "7", "1-2-3", "1-x", "-1-2"):
            cache(d, "pin", f"--id={wrong}", status=USAGE)
        cache(d, "pin", "--id", "7-4000000000", status=NOT_FOUND)
        cache(d, "pin", "--id", "4000000000-1", status=NOT_FOUND)
        cache(d, "pin", status=USAGE)
        cache(d, "pin", "--id", mine, "--prefix", prompt, status=USAGE)
        cache(d, "pin", "--prefix", "short", status=FAILED)
        d.generate("Hi", tokens=1)
        short = [p["id"] for p in prefixes(d) if p["tokens"] < 16]
        cache(d, "pin", "--id", short[0], status=FAILED)
        cache(d, "unpin", "--id", held)


def test_a_public_prefix_is_everybodys():
    with open_daemon() as d:
        # who computed it before has a copy of its own, and finds the public one later
        first = d.generate("Hello", raw=False, system=SYSTEM, logprobs=True, **ALICE)
        equal(first["cached_tokens"], 0, "tokens cached at first")
        whole = cache(d, "pin", "--public", "--system", SYSTEM)["tokens"]
        assert whole > 100, f"only {whole} tokens pinned"
        equal([p["domain"] for p in pinned(d, **BOB)], ["public"], "pins that a user sees")
        hit = d.generate("Hello", raw=False, system=SYSTEM, logprobs=True, **BOB)
        equal(hit["cached_tokens"], whole, "tokens cached for a user who never asked")
        for key in ("tokens", "logprobs", "text"):
            equal(hit[key], first[key], f"{key} with the public prefix")
        # what follows the public part is each user's own
        secret = prose(100, 3)
        mine = d.generate(secret, raw=False, system=SYSTEM, **ALICE)
        equal(mine["cached_tokens"], whole, "tokens cached for the first user")
        # of the second user's own there are the few that every turn of a chat begins with
        theirs = d.generate(secret, raw=False, system=SYSTEM, **BOB)["cached_tokens"]
        assert whole <= theirs < whole + 16, f"{theirs - whole} tokens after the public ones"
        assert d.generate(secret, raw=False, system=SYSTEM, **ALICE)["cached_tokens"] > whole
        # rights
        cache(d, "pin", "--public", "--system", SYSTEM, status=PERMISSION, **BOB)
        public = pinned(d)[0]["id"]
        cache(d, "unpin", "--id", public, status=PERMISSION, **BOB)
        cache(d, "flush", "--yes", "--id", public, status=PERMISSION, **BOB)
        d.kvctl("cache", "flush", "--yes", "--domain", "public", status=PERMISSION, **BOB)
        d.kvctl("cache", "flush", "--yes", **BOB)
        equal(d.generate("Hello", raw=False, system=SYSTEM, **BOB)["cached_tokens"], whole,
              "tokens cached after the user's own flush")
        # what is no longer public takes along what hangs below it
        cache(d, "unpin", "--id", public)
        counts = cache(d, "flush", "--yes", "--domain", "public")
        equal(counts["remaining"], 0, "left")
        assert counts["flushed_blocks"] > whole // 16, f"only the public part went: {counts}"
        equal(d.generate("Hello", raw=False, system=SYSTEM, **BOB)["cached_tokens"], 0,
              "tokens cached after the flush")
        equal([p for p in prefixes(d) if p["domain"] == "public"], [], "public prefixes")


def test_salt_and_priority():
    prompt = prose(60, 50)

    def ask(*args, status=OK):
        done = d.kvctl("generate", "--raw", "--json", "--max-tokens", "2", *args, prompt,
                       status=status)
        return json.loads(done.stdout)["cached_tokens"] if status == OK else None

    with open_daemon() as d:
        cache(d, "pin", "--public", "--prefix", prompt)
        assert ask() > 0, "no hit without a salt"
        equal(ask("--salt", "7"), 0, "tokens cached for a salt")
        assert ask("--salt", "7") > 0, "no hit with the same salt"
        equal(ask("--salt", "8"), 0, "tokens cached for another salt")
        assert ask("--priority", "-100", "--timeout", "60") > 0
        for wrong in ("101", "-101", "1.5", "high"):
            ask("--priority", wrong, status=USAGE)
        cache(d, "unpin", "--prefix", prompt)


def test_flush_of_one_prefix():
    stem, other = prose(150, 21), prose(150, 22)
    long_a, long_b = stem + " " + prose(80, 23), stem + " " + prose(80, 24)
    with open_daemon() as d:
        for prompt in (long_a, long_b, other):
            d.generate(prompt, **ALICE)
            d.generate(prompt, **BOB)
        before = d.stats()["cache"]["blocks_cached"]
        # one branch goes, what it shares with the other stays
        counts = cache(d, "flush", "--yes", "--prefix", long_a, **ALICE)
        equal((counts["kept_pinned"], counts["kept_active"], counts["remaining"]), (0, 0, 0),
              "kept")
        equal(before - d.stats()["cache"]["blocks_cached"], counts["flushed_blocks"], "freed")
        assert counts["flushed_blocks"] > 2, counts
        shared = d.generate(long_a, **ALICE)["cached_tokens"]
        assert 0 < shared < len(d.tokenize(long_a)) - 48, f"{shared} tokens left"
        assert d.generate(long_b, **ALICE)["cached_tokens"] > shared, "the other branch went"
        # the stem takes both branches along
        cache(d, "flush", "--yes", "--prefix", stem, **ALICE)
        for prompt in (long_a, long_b):
            # a few tokens, because `other` begins with them, too
            left = d.generate(prompt, tokens=1, **ALICE)["cached_tokens"]
            assert left < 16, f"{left} tokens of a branch after the flush of the stem"
            cache(d, "flush", "--yes", "--prefix", stem, **ALICE)
        for prompt, who in ((other, ALICE), (long_a, BOB), (long_b, BOB), (other, BOB)):
            assert d.generate(prompt, **who)["cached_tokens"] > 0, "the flush went too far"
        # nothing there is nothing to do; of others only for an administrator
        equal(cache(d, "flush", "--yes", "--prefix", prose(50, 99), **ALICE)["flushed_blocks"],
              0, "blocks flushed of nothing")
        bobs = [p["id"] for p in prefixes(d) if p["domain"] == "uid:61002"][0]
        cache(d, "flush", "--yes", "--id", bobs, status=NOT_FOUND, **ALICE)
        assert cache(d, "flush", "--yes", "--id", bobs)["flushed_blocks"] > 0
        cache(d, "flush", "--yes", "--id", bobs, status=NOT_FOUND)
        cache(d, "flush", "--yes", "--model", "no-such-model", status=NOT_FOUND)
        cache(d, "flush", "--yes", "--model", "x", "--prefix", stem, status=USAGE)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
