#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Users: what one has computed is nobody else's hit (cases 37, 38). Flushing the cache under
load (case 57)."""
import bisect
import json
import os
import random
import signal
import subprocess
import sys

import kvdtest
import samepid
from kvdtest import BUSY, FAILED, OK, PERMISSION, SANITIZED, Daemon, Skip, equal, limit, prose, until

ALICE = {"user": 61001, "group": 61001, "extra_groups": []}
BOB = {"user": 61002, "group": 61002, "extra_groups": []}


def open_daemon(options=None):
    if os.getuid() != 0:
        raise Skip("needs root, to become two other users")
    d = Daemon({"cache.kv_cache_memory": "256M", **(options or {})})
    os.chmod(d.socket, 0o666)
    return d


def test_two_users_share_nothing():
    prompt = prose(300, 8)
    with open_daemon() as d:
        cold = d.generate(prompt, logprobs=True, **ALICE)
        equal(cold["cached_tokens"], 0, "tokens cached for the first user")
        again = d.generate(prompt, logprobs=True, **ALICE)
        assert again["cached_tokens"] > 0, "the same user gets no hit"
        before = d.stats()["cache"]
        other = d.generate(prompt, logprobs=True, **BOB)
        after = d.stats()["cache"]
        equal(other["cached_tokens"], 0, "tokens cached for the second user")
        equal(after["shared_hit_tokens"], before["shared_hit_tokens"], "shared_hit_tokens")
        equal(after["hit_tokens"], before["hit_tokens"], "hit_tokens")
        for key in ("tokens", "logprobs", "text"):
            equal(other[key], cold[key], f"{key} of the second user")
        # Each goes on hitting its own.
        assert d.generate(prompt, **ALICE)["cached_tokens"] > 0
        assert d.generate(prompt, **BOB)["cached_tokens"] > 0


def test_users_see_their_own_clients():
    with open_daemon() as d:
        child = d.spawn_generate(prose(20, 1), tokens=300, temperature=1, **ALICE)
        until(lambda: any(c["uid"] == 61001 for c in d.clients()), 10, "root sees the client")
        mine = json.loads(d.kvctl("clients", "--json", **BOB).stdout)["clients"]
        assert mine and all(c["uid"] == 61002 for c in mine), \
            f"another user's clients are shown: {mine}"
        d.answer(child)


def test_users_flush_their_own():
    prompt = prose(200, 4)
    with open_daemon() as d:
        d.generate(prompt, **ALICE)
        d.generate(prompt, **BOB)
        d.kvctl("cache", "flush", "--yes", "--domain", "uid:61001", status=PERMISSION, **BOB)
        assert d.generate(prompt, **ALICE)["cached_tokens"] > 0, "another user flushed it"
        d.kvctl("cache", "flush", "--yes", status=OK, **BOB)
        equal(d.generate(prompt, **BOB)["cached_tokens"], 0, "tokens cached after the flush")
        assert d.generate(prompt, **ALICE)["cached_tokens"] > 0, "another user's were flushed"
        d.kvctl("cache", "flush", "--yes", "--domain", "uid:61001")
        equal(d.generate(prompt, **ALICE)["cached_tokens"], 0, "tokens cached after the flush")


def test_rights_follow_the_user_not_the_process_id():
    """The id of the process that connected now belongs to one of root's."""
    prompt = prose(60, 4)
    with open_daemon() as d:
        d.generate(prompt, **BOB)
        child = d.spawn([sys.executable, samepid.__file__, d.socket, "61001", "61001", "uid:61002"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        line = child.stdout.readline()
        if not line.startswith("{") and child.wait(60) == 77:
            raise Skip(f"process ids cannot be chosen here: {line}")
        equal(json.loads(line), samepid.REFUSED, "what the daemon answered")
        equal([c["uid"] for c in d.clients() if c["name"] == "samepid"], [61001], "its uid")
        child.communicate(timeout=60)
        equal(child.returncode, OK, "exit status of its process")
        assert d.generate(prompt, **BOB)["cached_tokens"] > 0, "it was flushed"


def test_no_permission():
    with open_daemon() as d:
        os.chmod(d.socket, 0o600)
        done = d.kvctl("stats", status=PERMISSION, **BOB)
        assert "ermission" in done.stderr and d.socket in done.stderr, done.stderr
        os.chmod(d.socket, 0o666)
        d.kvctl("stats", **BOB)


@limit(600)
def test_flush_under_load():
    """Running answers stay as they are; exit 0 only when nothing flushable is left."""
    prompts = [prose(40, 700 + i) for i in range(6)]

    def ask(i):
        return dict(prompt=prompts[i], tokens=30 if SANITIZED else 100, temperature=0.7, seed=i, logprobs=True)

    with Daemon({"cache.kv_cache_memory": "256M"}) as d:
        alone = [d.generate(**ask(i)) for i in range(len(prompts))]
        for turn in range(kvdtest.rounds(3)):
            children = [d.spawn_generate(**ask(i)) for i in range(len(prompts))]
            flushes = 0
            while any(child.poll() is None for child in children):
                done = d.kvctl("cache", "flush", "--yes", "--json", status=None)
                counts = json.loads(done.stdout)
                equal(done.returncode, FAILED if counts["remaining"] else OK,
                      f"exit code for {counts}")
                flushes += 1
            for i, child in enumerate(children):
                got = d.answer(child)
                for key in ("tokens", "logprobs", "text"):
                    equal(got[key], alone[i][key], f"turn {turn}, client {i}: {key}")
            assert flushes > 3, "the requests were over before the flushes"
        until(lambda: d.stats()["cache"]["blocks_active"] == 0, 5, "active blocks are gone")
        counts = json.loads(d.kvctl("cache", "flush", "--yes", "--json").stdout)
        equal(counts["remaining"], 0, "blocks left")
        equal(d.stats()["cache"]["blocks_cached"], 0, "cached blocks after the flush")
        equal(d.generate(prompts[0])["cached_tokens"], 0, "tokens cached after the flush")


@limit(300)
def test_connection_limit():
    """Past the limit of one user: a named error, and only for that user."""
    with open_daemon({"daemon.max_clients_per_uid": 4}) as d:
        holders = [d.spawn_generate(prose(10, i), tokens=4000, temperature=1, **ALICE)
                   for i in range(4)]
        until(lambda: sum(c["uid"] == 61001 for c in d.clients()) == 4, 20, "four connections")
        done = d.kvctl("stats", status=BUSY, **ALICE)
        assert done.stderr.startswith("kvctl: ") and len(done.stderr.strip().split("\n")) == 1
        d.kvctl("stats", **BOB)
        for child in holders:
            child.kill()
            child.communicate()
            child.out.close()
        until(lambda: d.kvctl("stats", status=None, **ALICE).returncode == OK, 5,
              "room again for the user")


def auc(lower, higher):
    """How often one of @lower is below one of @higher (0.5: nothing tells them apart), with
    the standard error of that where nothing does: Mann and Whitney's U."""
    ranked = sorted(higher)
    m, n = len(lower), len(higher)
    wins = sum(n - (bisect.bisect_left(ranked, a) + bisect.bisect_right(ranked, a)) / 2
               for a in lower)
    return wins / (m * n), ((m + n + 1) / (12 * m * n)) ** 0.5


HITS = os.path.join(os.path.dirname(kvdtest.HOSTILE), "hits")


def probe(d, prompts, who):
    """Cached tokens and nanoseconds to the first token of each prompt, see hits.c."""
    done = subprocess.run([HITS], env=d.env(), check=True, encoding="utf-8", timeout=600,
                          stdout=subprocess.PIPE, **who,
                          input="".join(f"{s} {i}\n" for s, i in prompts))
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


@limit(900)
def test_hit_timing_tells_nothing_to_others():
    """Times to the first token of what another user has cached, and of what nobody has.

    A rank statistic, which the speed of the machine does not change. With n probes of each
    kind its standard error is 0.41 / sqrt(n); n is such that the bound of 0.05 is three and
    a half of them, so that a sound daemon fails once in two thousand runs."""
    n = 860
    cached = [(1, i) for i in range(n)]
    fresh = [(2, i) for i in range(n)]
    order = random.Random(7)
    with open_daemon({"cache.kv_cache_memory": "1G", "cache.kv_cache_dtype": "int8"}) as d:
        assert not any(hit for hit, _ in probe(d, cached, ALICE)), "cached from the start"
        # In random order, so that whatever else the machine does falls on both alike.
        asked = order.sample(cached + fresh, 2 * n)
        got = probe(d, asked, BOB)
        assert not any(hit for hit, _ in got), "a hit across users"
        across, error = auc([t for (s, _), (_, t) in zip(asked, got) if s == 1],
                            [t for (s, _), (_, t) in zip(asked, got) if s == 2])
        # The same prompts are hits of the one who asked first, all of them, to the end.
        mine = order.sample(cached, 100) + [(3, i) for i in range(100)]
        mine = order.sample(mine, len(mine))
        got = probe(d, mine, ALICE)
        equal([hit for hit, _ in got], [16 if s == 1 else 0 for s, _ in mine], "own hits")
        inside, _ = auc([t for (s, _), (_, t) in zip(mine, got) if s == 1],
                        [t for (s, _), (_, t) in zip(mine, got) if s == 3])
        print(f"# AUC across users {across:.3f}, standard error {error:.4f} "
              f"({abs(across - 0.5) / error:.1f} of them), inside {inside:.3f}", flush=True)
        assert 3.5 * error <= 0.0501, f"{error}: too few probes for the bound"
        assert abs(across - 0.5) <= 0.05, f"AUC across users: {across:.3f}"
        assert inside > 0.95, f"AUC of a user's own hits: {inside:.3f}"


def domain_conf(d, text):
    with open(os.path.join(d.folder, "kvd.conf"), "w", encoding="utf-8") as f:
        f.write(text)


def open_domains(text, options=None):
    if os.getuid() != 0:
        raise Skip("needs root, to become other users")
    d = Daemon({"cache.kv_cache_memory": "128M", **(options or {})}, start=False)
    domain_conf(d, text)
    d.start()
    os.chmod(d.socket, 0o666)
    return d


CAROL = {"user": 61003, "group": 61003, "extra_groups": [61500]}


def test_a_domain_shares_and_others_do_not():
    prompt = prose(300, 8)
    with open_domains("[domain lab]\nusers = 61001\ngroups = 61500\n") as d:
        cold = d.generate(prompt, logprobs=True, **ALICE)
        equal(cold["cached_tokens"], 0, "tokens cached for the first user")
        member = d.generate(prompt, logprobs=True, **CAROL)
        assert member["cached_tokens"] > 0, "a member by group gets no hit"
        equal(member["logprobs"], cold["logprobs"], "logprobs of a hit across users")
        equal(d.generate(prompt, **BOB)["cached_tokens"], 0, "tokens cached for a stranger")
        listed = json.loads(d.kvctl("cache", "ls", "--json").stdout)["prefixes"]
        equal({p["domain"] for p in listed}, {"lab", "uid:61002"}, "domains in the list")
        mine = json.loads(d.kvctl("cache", "ls", "--json", **BOB).stdout)["prefixes"]
        equal({p["domain"] for p in mine}, {"uid:61002"}, "domains that a stranger sees")
        d.kvctl("cache", "flush", "--yes", "--domain", "lab", status=PERMISSION, **BOB)
        d.kvctl("cache", "flush", "--yes", "--domain", "nowhere", status=FAILED)
        d.kvctl("cache", "flush", "--yes", "--domain", "lab", status=OK)
        equal(d.generate(prompt, **ALICE)["cached_tokens"], 0, "tokens after the flush")
        assert d.generate(prompt, **BOB)["cached_tokens"] > 0, "the flush went too far"


def test_limits_hurt_their_owner_only():
    prompt = prose(120, 3)
    conf = "[quota]\nmax_connections = 3\n[domain lab]\nusers = 61001\nmax_blocks = 4\n"
    with open_domains(conf) as d:
        d.generate(prompt, **BOB)
        d.kvctl("generate", "--raw", prompt, status=BUSY, **ALICE)
        short = d.generate("One two three", tokens=200, **ALICE)
        assert short["prompt_tokens"] + len(short["tokens"]) <= 4 * 16 + 1, "beyond max_blocks"
        users = json.loads(d.kvctl("cache", "quota", "--json").stdout)["users"]
        assert users and all(u["blocks"] == 0 for u in users), f"blocks are charged at rest: {users}"
        d.kvctl("cache", "quota", "--user", "61001", "--max-blocks", "0", status=PERMISSION,
                **ALICE)
        d.kvctl("cache", "quota", "--user", "61001", "--max-blocks", "0", status=OK)
        d.generate(prompt, **ALICE)
        d.kvctl("cache", "quota", "--user", "61002", "--max-arena", "1", status=OK)
        d.kvctl("generate", "--raw", prompt, status=BUSY, **BOB)
        d.generate(prompt, **ALICE)


def test_unknown_user_of_a_domain_is_left_out():
    """A name that cannot be resolved now takes the service from nobody (kvd.conf(5))."""
    d = Daemon(start=False)
    try:
        domain_conf(d, "[domain lab]\nusers = nobody-of-this-name\n")
        d.start()
        assert "nobody-of-this-name" in d.log(), d.log()
        equal(d.generate("Hello", tokens=1)["prompt_tokens"], 1, "the daemon answers")
        d.stop()
    finally:
        d.close()


def test_mistakes_in_domains():
    for text, word in (("[domain lab]\ncolour = red\n", "unknown key"),
                       ("[domain lab]\nmax_blocks = many\n", "many"),
                       ("[domain a b]\nusers = 1\n", "unknown section")):
        d = Daemon(start=False)
        try:
            domain_conf(d, text)
            try:
                d.start()
            except AssertionError:
                pass
            else:
                raise AssertionError(f"kvd starts with {text!r}")
            assert word in d.log(), f"{text!r}: {d.log()}"
        finally:
            d.close()


class Hidden(Daemon):
    """In a user namespace that maps root only, as a rootless container is."""

    def command(self):
        return ["unshare", "-U", "-r", *super().command()]


def test_users_without_a_number_are_turned_away():
    """There the kernel gives all others one uid; they would share cache, limits and rights."""
    if os.getuid() != 0:
        raise Skip("needs root, to become two other users")
    if subprocess.run(["unshare", "-U", "-r", "true"], capture_output=True).returncode:
        raise Skip("user namespaces are not permitted here")
    prompt = prose(100, 8)
    with Hidden({"cache.kv_cache_memory": "64M"}) as d:
        os.chmod(d.socket, 0o666)
        assert "does not map all uids" in d.log(), d.log()
        for who in (ALICE, BOB):
            done = d.kvctl("generate", "--raw", prompt, status=None, **who)
            assert done.returncode not in (OK, None), "a user without a number is served"
            assert "user namespace" in done.stderr, done.stderr
        equal(len(d.clients()), 1, "clients, the one that asks")
        d.generate(prompt)
        assert "uids and turns away" in d.kvctl("doctor").stdout, "doctor says nothing"


def test_limits_follow_a_reload():
    """For a user who is connected as well: it could not connect once more before."""
    with open_daemon() as d:
        first = d.spawn_generate(prose(20, 1), tokens=2000, temperature=1, **ALICE)
        until(lambda: any(c["uid"] == 61001 for c in d.clients()), 10, "root sees the client")
        domain_conf(d, "[quota]\nmax_connections = 1\n")
        d.process.send_signal(signal.SIGHUP)
        until(lambda: "configuration reloaded, 1 values changed" in d.log(), 10, "the reload")
        d.kvctl("generate", "--raw", "x", status=BUSY, **ALICE)
        domain_conf(d, "[quota]\nmax_connections = 2\n")
        d.process.send_signal(signal.SIGHUP)
        until(lambda: d.log().count("1 values changed") == 2, 10, "the reload")
        d.generate("x", **ALICE)
        first.kill()


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
