#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What administrators do: draining, flushing a model, limits, pins; and what the log says."""
import json
import os
import re
import socket
import subprocess
import sys

import kvdtest
from kvdtest import BUSY, FAILED, NOT_FOUND, OK, PERMISSION, TIMED_OUT, Daemon, Skip, equal, prose, until

SMALL = {"cache.kv_cache_memory": "64M"}
ALICE = {"user": 61001, "group": 61001, "extra_groups": []}


def message_ids():
    with open(os.path.join(kvdtest.ROOT, "daemon", "msgid.h"), encoding="utf-8") as f:
        return dict(re.findall(r'#define MSGID_(\w+)\s+"([0-9a-f]{32})"', f.read()))


def logged(d, name):
    """Entries of the log with that id."""
    wanted = message_ids()[name]
    lines = [json.loads(line) for line in d.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("message_id") == wanted]


def drain(d, *args, **more):
    return json.loads(d.kvctl("drain", "--json", *args, **more).stdout)


def test_drain():
    """New requests are refused by name, those that run give what they give anyway."""
    prompt = prose(12, 3)
    with Daemon({**SMALL, "daemon.log_target": "json"}) as d:
        alone = d.generate(prompt, tokens=120, temperature=1)
        watcher = d.spawn([kvdtest.KVCTL, "monitor", "--count", "1000"], stdout=subprocess.PIPE)
        until(lambda: any(c["pid"] == watcher.pid for c in d.clients()), 10, "the watcher is there")
        equal(d.kvctl("drain", "--off").stdout, "kvd takes new requests\n", "not draining")
        child = d.spawn_generate(prompt, tokens=120, temperature=1)
        until(lambda: d.stats()["requests"]["running"] == 1, 20, "the request runs")
        equal(drain(d), {"draining": True, "requests": 1}, "the beginning")
        for verb in (["generate", "--raw", "x"], ["score", "x y"]):
            done = d.kvctl(*verb, status=BUSY)
            assert "takes nothing new" in done.stderr, done.stderr
        d.kvctl("tokenize", "x")
        d.kvctl("latency", "--count", "2")
        assert d.stats()["draining"] and "draining" in d.kvctl("status").stdout, "stats say nothing"
        equal(drain(d, "--wait"), {"draining": True, "requests": 0}, "the end")
        got = d.answer(child)
        equal((got["tokens"], got["text"]), (alone["tokens"], alone["text"]), "the answer")
        equal(drain(d, "--off"), {"draining": False, "requests": 0}, "off")
        assert not d.stats()["draining"]
        equal(d.generate(prompt, tokens=120, temperature=1)["tokens"], alone["tokens"], "afterwards")
        equal([len(logged(d, name)) for name in ("DRAINING", "DRAIN_ENDED")], [1, 1], "log entries")
        until(lambda: d.stats()["requests"]["running"] == 0, 10, "idle")
        watcher.terminate()
        events = [json.loads(line) for line in watcher.communicate(timeout=30)[0].splitlines()]
        equal([(e["draining"], e["requests"]) for e in events if e["event"] == "drain"],
              [(True, 1), (False, 0)], "events")


def test_drain_waits_no_longer_than_told():
    with Daemon(SMALL) as d:
        child = d.spawn_generate(prose(9, 1), tokens=4000, temperature=1.5)
        until(lambda: d.stats()["requests"]["running"] == 1, 20, "the request runs")
        d.kvctl("drain", "--wait", "--timeout", "0.5", status=TIMED_OUT)
        assert d.stats()["draining"], "it went on taking requests"
        kvdtest.kill(child)
        child.out.close()
        d.kvctl("drain", "--wait", status=OK)


def test_drain_shows():
    """In the service's status line and in doctor, until it ends."""
    d = Daemon(SMALL, start=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = os.path.join(d.folder, "notify")
        notify.bind(path)
        notify.settimeout(20)
        seen = set()
        d.popen = {"env": {**os.environ, "NOTIFY_SOCKET": path}}

        def status(wanted):
            """Waits for a status line that does or does not speak of draining."""
            while True:
                for line in notify.recv(4096).decode().splitlines():
                    if line.startswith("STATUS=serves") and ("draining" in line) == wanted:
                        seen.add(line)
                        return

        d.start()
        with d:
            status(False)
            # every local user reads it: it says nothing of what clients do
            d.generate(prose(30, 1))
            d.kvctl("drain")
            status(True)
            checks = json.loads(d.kvctl("doctor", "--json", status=None).stdout)["checks"]
            equal([c["state"] for c in checks if c["name"] == "draining"], ["warn"], "doctor")
            d.kvctl("drain", "--off")
            status(False)
            checks = json.loads(d.kvctl("doctor", "--json", status=None).stdout)["checks"]
            assert not any(c["name"] == "draining" for c in checks), checks
        equal(len(seen), 2, f"different lines in {seen}")


def test_drain_is_for_administrators():
    if os.getuid() != 0:
        raise Skip("needs root, to become another user")
    with Daemon(SMALL) as d:
        os.chmod(d.socket, 0o666)
        d.kvctl("drain", status=PERMISSION, **ALICE)
        d.kvctl("drain", status=OK)
        d.kvctl("drain", "--off", status=PERMISSION, **ALICE)
        d.kvctl("generate", "--raw", "x", status=BUSY, **ALICE)
        d.kvctl("drain", "--off", status=OK)
        d.kvctl("generate", "--raw", "--max-tokens", "2", "x", status=OK, **ALICE)


def test_flush_of_a_model():
    """By name or fingerprint; another one is not found, and who is served is said."""
    with Daemon(SMALL) as d:
        model = d.stats()["model"]
        flush = ["cache", "flush", "--yes", "--json", "--model"]
        for name in (model["name"], model["fingerprint"], model["fingerprint"][:8]):
            d.generate(prose(60, 1))
            assert json.loads(d.kvctl(*flush, name).stdout)["flushed_blocks"] > 0, name
            equal(d.stats()["cache"]["blocks_cached"], 0, f"cached after a flush of {name}")
        d.generate(prose(60, 1))
        for name in ("other", model["fingerprint"][:7], model["name"] + "x",
                     model["fingerprint"][1:]):
            done = d.kvctl(*flush, name, status=NOT_FOUND)
            assert model["name"] in done.stderr, done.stderr
        d.kvctl(*flush, "x" * 64, status=FAILED)
        assert d.stats()["cache"]["blocks_cached"] > 0, "a flush of nothing flushed"


def test_the_log_tells_acts_apart():
    """Pins, limits and flushes have an id each, with whose act it was."""
    with Daemon({**SMALL, "daemon.log_target": "json"}) as d:
        d.kvctl("cache", "pin", "--prefix", prose(60, 1))
        d.kvctl("cache", "unpin", "--prefix", prose(60, 1))
        d.kvctl("cache", "quota", "--user", "61001", "--max-running", "3")
        d.kvctl("cache", "flush", "--yes")
        for name, text in (("PREFIX_PINNED", "pinned"), ("PREFIX_UNPINNED", "unpinned"),
                           ("QUOTA_CHANGED", "61001"), ("CACHE_FLUSHED", "flushed")):
            found = logged(d, name)
            equal(len(found), 1, f"entries of {name}")
            assert text in found[0]["message"], found
            equal(str(found[0]["kvd_uid"]), str(os.getuid()), f"KVD_UID of {name}")
        equal(len(logged(d, "CONFIG_RELOADED")), 0, "entries about the configuration")


class WithAdmin(Daemon):
    """Hands the daemon a socket for administrators, as the service manager does."""

    def __init__(self, options):
        super().__init__(options, start=False)
        self.admin = os.path.join(self.folder, "admin.sock")
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.admin)
        self.listening.listen(16)
        self.popen = {"pass_fds": (self.listening.fileno(),)}
        self.start()

    def command(self):
        script = (f'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=kvd-admin "$@" '
                  f'3<&{self.listening.fileno()}')
        return ["sh", "-c", script, "sh", *super().command()]

    def close(self):
        super().close()
        self.listening.close()


def test_administrators_get_in():
    """By their own socket, though their user has used up its connections."""
    with WithAdmin({**SMALL, "daemon.max_clients_per_uid": 2}) as d:
        holders = [d.spawn_generate(prose(9, i), tokens=4000, temperature=1.5) for i in range(2)]

        def user():
            got = json.loads(d.kvctl("-s", d.admin, "clients", "--json").stdout)
            return next(u for u in got["users"] if u["uid"] == os.getuid())

        # Asked by the administrators' socket alone: what asks by the other might take the
        # place of one of the two.
        until(lambda: user()["connections"] == 3, 20, "the user is at its limit")
        equal(user()["max_connections"], 2, "limit of connections")
        done = d.kvctl("stats", status=BUSY)
        assert "max_connections of this user" in done.stderr and "is 2" in done.stderr, done.stderr
        for child in holders:
            kvdtest.kill(child)
            child.out.close()
        until(lambda: d.kvctl("stats", status=None).returncode == OK, 10, "room again")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
