#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Users beside others who keep to the contract and take all they can get.

One row of ROWS for each way to take: what it is, and what is held to beside the bounds that
hold for all. Each is played by one user and by six against a daemon that runs as a user
without rights of its own and with the limits of the unit, beside an honest user who asks for
NOPs or decodes. docs/security.md names the promises; a new operation or message gets its
row here.
"""
import atexit
import contextlib
import functools
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time

import kvdtest
from kvdtest import BUILD, ROOT, SANITIZED, Daemon, Skip, equal, limit, prose, until

GREEDY = os.path.join(BUILD, "tests", "system", "greedy")
TIME = kvdtest.seconds(2)
SERVICE, HONEST, FIRST_GREEDY = 61000, 61002, 61100

# Beyond its idle value, as TARGETS has it, of the time that the daemon and the asker had a CPU.
NOP_P99_US, NOP_MAX_US = 2000, 20000
# Sanitizers make all work ten times as long, and the machine's other users are not ours.
SLOWER = 10 if SANITIZED else 1
FAIR = 0.8
TRIES = 3
RSS_BACK = 16 << 20
# Six do all that one does; sanitizers look for what is wrong in it, and are slow.
USERS = (6,) if SANITIZED else (1, 6)


class Late(AssertionError):
    """A bound of time was missed."""


class Row:
    """@p99_us: beyond the idle value. @max_us: of the worst.
    @decodes: the honest user's tokens are held to its share, not its NOPs alone.
    @keeps_prefix: a prefix that the honest user has asked twice is still there.
    @idle: nothing is left to do, so the loop has to sleep."""

    def __init__(self, what, decodes=False, keeps_prefix=False, idle=False,
                 p99_us=NOP_P99_US, max_us=NOP_MAX_US):
        self.what, self.decodes, self.p99_us, self.max_us = what, decodes, p99_us, max_us
        self.keeps_prefix, self.idle = keeps_prefix, idle


ROWS = {
    "nops": Row("all rings full of the cheapest entries"),
    "texts": Row("all rings full of short texts, the dearest there are"),
    "longtexts": Row("texts of the greatest length"),
    "ids": Row("a million ids to become text for which there is no room"),
    "forks": Row("forks of a long kept sequence"),
    "takesback": Row("an entry that is taken back while the completions are full", idle=True),
    "stats": Row("statistics on all connections"),
    "lists": Row("lists of the cache on all connections"),
    "flushes": Row("flushes on all connections"),
    "opens": Row("rings of the longest queues, opened and closed"),
    "closes": Row("connections that end with all of their output used"),
    "keeps": Row("output files that are kept after their ring has ended"),
    "queues": Row("the longest queues, all of them full"),
    "waits": Row("as many of the longest prompts as may wait"),
    "scores": Row("the same to be scored"),
    "unread": Row("answers with descriptors that nobody reads"),
    "silent": Row("connections that say nothing"),
    # The kernel walks them in one write() of 7 to 20 ms, which nothing can end or divide; the
    # third ends the connection. The one row whose neighbours may wait longer.
    "waiters": Row("a doorbell with a hundred thousand waiters", p99_us=100000, max_us=100000),
    "decodes": Row("all sequences that may run, without an end", decodes=True),
    "draws": Row("the same with the dearest parameters of sampling", decodes=True),
    "floods": Row("prompts that nobody asks again", keeps_prefix=True),
}


def unit_limit(name):
    with open(os.path.join(ROOT, "systemd", "kvd.service.in"), encoding="utf-8") as f:
        return int(re.search(rf"^{name}=(\d+)$", f.read(), re.M).group(1))


def who(uid):
    return {"user": uid, "group": uid, "extra_groups": []}


@functools.lru_cache(maxsize=None)
def public_model():
    """The model where every user can read it, for the whole run."""
    folder = tempfile.mkdtemp(prefix="kvd-test.model.")
    atexit.register(shutil.rmtree, folder)
    os.chmod(folder, 0o755)
    path = os.path.join(folder, "model.gguf")
    shutil.copy(kvdtest.MODEL, path)
    os.chmod(path, 0o644)
    return path


@contextlib.contextmanager
def open_daemon(options=None):
    if os.getuid() != 0:
        raise Skip("needs root, to become other users")
    files = min(unit_limit("LimitNOFILE"), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    d = Daemon({"cache.kv_cache_memory": "128M", **(options or {})}, model=public_model(),
               start=False)
    os.chown(d.folder, SERVICE, SERVICE)
    d.popen = {**who(SERVICE), "preexec_fn":
               lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))}
    with d:
        d.start()
        os.chmod(d.socket, 0o666)
        yield d


def probe(d, what, time_s, interval_us=1000):
    child = d.spawn([kvdtest.PROBE, what, str(time_s), str(interval_us), str(d.process.pid)],
                    stdout=kvdtest.PIPE, **who(HONEST))
    time.sleep(time_s)
    return d.probed(child)


def spawn_greedy(d, verb, n_users, time_s):
    """One client for each user, once each has what it takes. What they compute themselves is
    between them and the kernel, so that they yield to the others."""
    children = [d.spawn(["nice", "-n", "19", GREEDY, verb, str(time_s)], stdout=kvdtest.PIPE,
                        **who(FIRST_GREEDY + i)) for i in range(n_users)]
    for child in children:
        assert select.select([child.stdout], [], [], 120)[0], f"greedy {verb} is not ready"
        equal(child.stdout.readline(), b"ready\n", f"what greedy {verb} says first")
    return children


def loop_cpu(d):
    with open(f"/proc/{d.process.pid}/schedstat", encoding="ascii") as f:
        return int(f.read().split()[0]) / 1e9


def share_of_loop(d, time_s=0.5):
    before, begin = loop_cpu(d), time.monotonic()
    time.sleep(time_s)
    return (loop_cpu(d) - before) / (time.monotonic() - begin)


def check_nops(verb, row, alone, beside):
    print(f"# {verb}: NOP p99 {alone['served_p99_us']:.0f} us alone, "
          f"{beside['served_p99_us']:.0f} beside, worst {beside['served_max_us']:.0f} us")
    if beside["served_p99_us"] > alone["served_p99_us"] + SLOWER * row.p99_us or \
            beside["served_max_us"] > SLOWER * row.max_us:
        raise Late(f"NOPs beside {verb}: {beside}, alone {alone}")


def check_tokens(verb, n_users, alone, beside):
    """In tokens for each second of CPU time that the daemon got: a machine may have other work."""
    share = beside / alone * (n_users + 1)
    print(f"# {verb}: {alone:.1f} tokens a CPU second alone, {beside:.1f} beside {n_users}, "
          f"{share:.2f} of the fair share")
    # With sanitizers the loop takes more time for a token than the model.
    if share < FAIR and not SANITIZED:
        raise Late(f"tokens beside {verb}: {share:.2f} of the fair share")


def tokens(d, time_s):
    """Those of the honest user, for each second of the daemon's CPU time."""
    before = d.cpu_seconds()
    n = probe(d, "tokens", time_s, 0)["n"]
    return n / (d.cpu_seconds() - before)


def play(verb, n_users):
    row = ROWS[verb]
    prompt = prose(200, 11)
    with open_daemon() as d:
        for _ in range(2):
            d.generate(prompt, tokens=1, **who(HONEST))
        alone = probe(d, "nop", TIME / 2)
        alone_tokens = tokens(d, TIME) if row.decodes else None
        n_fds, rss = d.n_fds(), d.rss()
        children = spawn_greedy(d, verb, n_users, 60 + 4 * TIME)
        if row.idle:
            used = share_of_loop(d)
            assert used < 0.1, f"the loop takes {used:.2f} of a CPU with nothing to do"
        beside = probe(d, "nop", TIME)
        beside_tokens = tokens(d, 2 * TIME) if row.decodes else None
        # Who comes only now is served as well.
        got = d.generate(prompt, tokens=1, timeout=60, **who(HONEST))
        for child in children:
            kvdtest.kill(child)
        assert d.alive(), "the daemon died"
        check_nops(verb, row, alone, beside)
        if row.decodes:
            check_tokens(verb, n_users, alone_tokens, beside_tokens)
        if row.keeps_prefix:
            assert got["cached_tokens"] > 0, "a prefix that was used twice is gone"
        until(lambda: d.stats()["clients"] == 1, kvdtest.grace(), "the greedy are gone")
        until(lambda: d.n_fds() <= n_fds, kvdtest.grace(),
              lambda: f"descriptors: {d.n_fds()} of {n_fds}")
        until(lambda: SANITIZED or d.rss() <= rss + RSS_BACK, kvdtest.grace(),
              lambda: f"memory: {d.rss() - rss} bytes more")


def test_rows_are_those_of_greedy():
    said = subprocess.run([GREEDY], stderr=subprocess.PIPE, encoding="utf-8", check=False).stderr
    equal(set(said.split("verbs:")[1].split()), set(ROWS), "verbs of greedy")


def make(verb, n_users):
    @limit(600)
    def test():
        # What the daemon does shows each time; what the machine does beside it, seldom twice.
        for tries in range(TRIES):
            try:
                return play(verb, n_users)
            except Late as why:
                print(f"# {why}")
                if tries == TRIES - 1:
                    raise

    test.__doc__ = f"{ROWS[verb].what}, by {n_users}"
    return test


for name in ROWS:
    for count in USERS:
        globals()[f"test_{name}_of_{count}"] = make(name, count)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
