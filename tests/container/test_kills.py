# SPDX-License-Identifier: MIT
"""The installed service under kill -9, of itself and of its clients: nothing is lost,
nothing comes twice, no token is wrong, and each start is warm.

The clients are tests/system/survive.c, which use the installed library. Environment: as
test_service.py; KVD_KILLS: how often, instead of 300 times.
"""
import os
import random
import signal
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))

import kvdtest  # noqa: E402
import survive  # noqa: E402
import test_service as service  # noqa: E402
from kvdtest import equal, limit, rounds, until  # noqa: E402

KINDS = ("stream", "score", "nop", "calls")
# The last one comes by the administrators' socket.
WHO = ("alice", "bob", "alice", "carol")
SOCKETS = {"carol": "/run/kvd/admin.sock"}
LIMIT = "/run/systemd/system/kvd.service.d/59-limit.conf"
WARM_START = "2103b159a0464c35866dd0fbbb5e0ec9"
COLD_START = "13990343a3d54dfe90c81e26a4c2b46f"


def kills():
    return int(os.environ.get("KVD_KILLS", 0)) or rounds(300)


def spawn(kind, who):
    child = service.machine.spawn("env", "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu",
                                  f"KVD_SOCKET={SOCKETS.get(who, '/run/kvd/kvd.sock')}",
                                  "/tests/survive", kind, user=service.user(who))
    line = child.stdout.readline()
    assert line == "ready\n", f"{kind} says {line!r}: {child.stderr.read() if not line else ''}"
    return child


def send(child, sig):
    """A signal for the program that nsenter runs."""
    with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="ascii") as f:
        for pid in f.read().split():
            os.kill(int(pid), sig)


def finish(children):
    found = {}
    for child in children.values():
        send(child, signal.SIGTERM)
    for kind, child in children.items():
        out, err = child.communicate(timeout=180)
        equal(child.returncode, 0, f"exit status of {kind}: {err}")
        found[kind] = out
    return {kind: survive.check(kind, out) for kind, out in found.items()}


def prepare():
    service.fresh()
    service.machine.write(LIMIT, "[Unit]\nStartLimitBurst=100000\n")
    service.systemctl("daemon-reload")


def test_install():
    service.test_install()
    service.test_model_fetch()


@limit(3600)
def test_kills_of_the_daemon():
    """kill -9 at random instants under four clients of three users."""
    prepare()
    since, rng = service.cursor(), random.Random(11)
    children = {kind: spawn(kind, who) for kind, who in zip(KINDS, WHO)}
    ends = []
    for _ in range(kills()):
        pid = service.main_pid()
        if pid:
            try:
                host = service.machine.host_pid(pid)
                begin = time.monotonic_ns()
                os.kill(host, signal.SIGKILL)
                ends.append(begin)
            except (AssertionError, ProcessLookupError):
                pass  # it had just ended, or has not begun
        # One in four dies before it serves, perhaps.
        if rng.random() < 0.75:
            service.new_daemon(pid)
        time.sleep(rng.uniform(0, 1.2))
    until(lambda: service.show("ActiveState") == "active", 60, "the daemon serves")
    nop = finish(children)["nop"]
    survive.report("kill -9", nop, ends)
    equal([e["MESSAGE"] for e in service.entries(since, COLD_START)], [], "cold starts")
    assert service.entries(since, WARM_START), "no start was warm"
    service.answers()


@limit(3600)
def test_kills_of_clients():
    """kill -9 of clients at random instants beside four that go on."""
    prepare()
    rng = random.Random(12)
    children = {kind: spawn(kind, who) for kind, who in zip(KINDS, WHO)}
    pid = service.main_pid()
    for i in range(kills()):
        victim = service.machine.spawn("kvctl", "generate", "--raw", "--ignore-eos",
                                       "--max-tokens", "400", f"{i} is",
                                       user=service.user("alice"))
        time.sleep(rng.uniform(0.05, 0.4))
        service.machine.kill(victim)
    finish(children)
    equal(service.main_pid(), pid, "the daemon's process")

    def idle():
        s = service.stats()
        return s["clients"] == 1 and s["requests"]["running"] == 0 and \
            s["cache"]["blocks_active"] == 0

    until(idle, 30, "all that the victims held is given back")


def main():
    service.main(globals(), [(os.path.join(kvdtest.BUILD, "tests", "system"), "/tests")])


if __name__ == "__main__":
    main()
