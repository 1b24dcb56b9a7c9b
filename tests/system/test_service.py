#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The daemon as a neighbour on a machine: idle cost, idle clients, containers, two loops."""
import ctypes
import errno
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import kvdtest
from kvdtest import KVCTL, SANITIZED, Daemon, Skip, equal, kill, limit, prose, until

SYS_SCHED_SETAFFINITY = 203  # x86_64


def cpu_share(d, time_s):
    begin, used = time.monotonic(), d.cpu_seconds()
    time.sleep(time_s)
    return (d.cpu_seconds() - used) / (time.monotonic() - begin)


@limit(300)
def test_idle_costs_nothing():
    """Ten and a hundred idle clients: less than a hundredth of a core (case 32)."""
    for backend in ("io_uring", "epoll"):
        with Daemon({"daemon.io_backend": backend, "cache.kv_cache_memory": "32M",
                     "daemon.max_clients_per_uid": 128, "quota.max_rings": 128}) as d:
            for n, time_s in ((10, kvdtest.seconds(15)), (100, kvdtest.seconds(15))):
                d.generate("Hello", tokens=4)
                idle = d.spawn_hostile(f"idle{n}")
                until(lambda want=n: d.stats()["clients"] == want + 1, 10, f"{n} clients")
                time.sleep(0.5)
                share = cpu_share(d, time_s)
                print(f"# {backend}, {n} idle clients: {share * 100:.3f} % of a core")
                assert share < 0.01, f"{n} idle clients cost {share * 100:.2f} % of a core"
                kill(idle)


@limit(300)
def test_idle_client_is_served_later():
    """No heartbeat: a client that did nothing for long is still welcome (case 19)."""
    with Daemon({"cache.kv_cache_memory": "32M"}) as d:
        wait_ms = int(kvdtest.seconds(15) * 1000)
        got = json.loads(d.kvctl("latency", "--json", "--count", "2", "--interval", str(wait_ms),
                                 timeout=wait_ms / 250 + 60).stdout)
        equal(got["count"], 2, "round trips")


def test_epoll_answers_the_same():
    answers = []
    for backend in ("io_uring", "epoll"):
        with Daemon({"daemon.io_backend": backend, "cache.kv_cache_memory": "64M"}) as d:
            got = d.generate(prose(60, 3), tokens=40, temperature=0.9, seed=5, logprobs=True)
            answers.append((got["tokens"], got["logprobs"], got["text"]))
    equal(answers[1], answers[0], "the answer over epoll")


def libraries(program):
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+) \(0x", out)


def test_client_in_a_container():
    """Own mounts, pids, network, IPC and users; of the host only the socket (case 42)."""
    unshare = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        raise Skip("no right to make namespaces here")
    with Daemon({"cache.kv_cache_memory": "64M"}) as d, tempfile.TemporaryDirectory() as root:
        for path in [KVCTL, *libraries(KVCTL)]:
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            shutil.copy(path, root + path)
        os.mkdir(os.path.join(root, "run"))
        inside = os.path.join(root, "run", "kvd.sock")
        with open(inside, "wb"):
            pass
        for more in ([], ["--user", "--map-root-user"]):
            if more and subprocess.run([*unshare, *more, "true"], check=False,
                                       capture_output=True).returncode:
                continue
            # Without /proc the loader cannot find libraries beside the program.
            path = os.path.join(kvdtest.BUILD, "client")
            script = (f"mount --bind {d.socket} {inside} && export LD_LIBRARY_PATH={path} && "
                      f"exec chroot {root} {KVCTL} "
                      "-s /run/kvd.sock generate --json --raw --max-tokens 8 'Once upon a time'")
            done = subprocess.run([*unshare, *more, "sh", "-c", script], text=True,
                                  capture_output=True, timeout=60, check=False)
            equal(done.returncode, 0, f"client in a container {more}: {done.stderr}")
            equal(len(json.loads(done.stdout)["tokens"]), 8, "tokens")


def beyond_weights_and_pool(d):
    """Resident bytes of the daemon that are neither weights nor block pool."""
    weights = int(re.search(r"(\d+) MiB of weights", d.log()).group(1)) << 20
    return d.rss() - weights


@limit(300)
def test_memory_beyond_weights_and_pool():
    """At most 64 MiB, at rest and after work of every size."""
    if SANITIZED:
        raise Skip("sanitizers use memory of their own")
    with Daemon({"cache.kv_cache_memory": "256M"}) as d:
        rest = beyond_weights_and_pool(d)
        d.generate(prose(3000, 1), tokens=16)
        for child in [d.spawn_generate(prose(100, 10 + i), tokens=32, temperature=0.8)
                      for i in range(16)]:
            d.answer(child)
        d.kvctl("score", "-", text=prose(500, 2))
        worked = beyond_weights_and_pool(d)
        print(f"# beyond weights and pool: {rest / (1 << 20):.1f} MiB at rest, "
              f"{worked / (1 << 20):.1f} MiB after work")
        assert max(rest, worked) <= 64 << 20, f"{rest} and {worked} bytes"


def test_second_daemon_on_one_socket():
    """The second says that the place is taken; the first goes on."""
    with Daemon({"cache.kv_cache_memory": "32M"}) as d:
        done = subprocess.run(d.command(), capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 1, f"exit status {done.returncode}: {done.stderr}"
        assert d.socket in done.stderr + done.stdout, done.stderr
        equal(len(d.generate("Hello", tokens=2)["tokens"]), 2, "tokens from the first daemon")


def test_socket_left_by_a_dead_daemon():
    d = Daemon({"cache.kv_cache_memory": "32M"})
    try:
        d.process.kill()
        d.process.wait()
        assert os.path.exists(d.socket), "kill -9 leaves the socket behind"
        d.kvctl("stats", status=kvdtest.NOT_RUNNING)
        d.start()
        d.stats()
        equal(d.stop(), 0, "exit status")
        assert not os.path.exists(d.socket), "the socket is still there"
    finally:
        d.close()


def test_reload_that_cannot_read():
    """Out of descriptors is no mistake in the configuration, and says so."""
    with Daemon({"cache.kv_cache_memory": "32M"}) as d:
        config = os.path.join(d.folder, "kvd.conf")

        def reload(want):
            mark = len(d.log())
            d.process.send_signal(signal.SIGHUP)
            until(lambda: want in d.log()[mark:], 10, want)
            return d.log()[mark:]

        limits = resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        said = reload("could not be read")
        assert "Too many open files" in said and "mistakes" not in said, said
        resource.prlimit(d.process.pid, resource.RLIMIT_NOFILE, limits)
        with open(config, "w", encoding="utf-8") as f:
            f.write("[daemon]\nnonsense = 1\n")
        said = reload("has mistakes")
        assert "could not" not in said, said
        with open(config, "w", encoding="utf-8"):
            pass
        reload("configuration reloaded")


def refuse_affinity():
    """In the child: sched_setaffinity gives EPERM from here on, as in kvd.service."""
    code = struct.pack("HBBI" * 4, 0x20, 0, 0, 0,  # the number of the call
                       0x15, 0, 1, SYS_SCHED_SETAFFINITY,
                       0x06, 0, 0, 0x00050000 | errno.EPERM,
                       0x06, 0, 0, 0x7fff0000)
    array = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(array)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def test_affinity_refused():
    """[cpu] affinity under a filter: one warning, one row of doctor, the same answer."""
    if os.uname().machine != "x86_64":
        raise Skip("the number of the call is that of x86_64")
    with Daemon({"cache.kv_cache_memory": "32M"}) as d:
        answer = d.kvctl("generate", "--raw", "--max-tokens", "16", "Story 1:").stdout
        assert not d.stats()["affinity_refused"], "refused without being asked for"
    for affinity in ("", "0-63"):
        with Daemon({"cache.kv_cache_memory": "32M", "cpu.affinity": affinity},
                    start=False) as d:
            d.popen["preexec_fn"] = refuse_affinity
            d.start()
            equal(d.kvctl("generate", "--raw", "--max-tokens", "16", "Story 1:").stdout, answer,
                  "the answer")
            equal(d.log().count("50-affinity.conf"), 1 if affinity else 0, "warnings")
            equal(d.stats()["affinity_refused"], bool(affinity), "statistics")
            text = d.kvctl("doctor").stdout
            equal(len(re.findall(r"^warn  affinity .*\n +fix: .*50-affinity", text, re.M)),
                  1 if affinity else 0, "rows of doctor")


def quota_group(percent):
    """A control group below the own one, of either version, with a CPU quota."""
    with open("/proc/self/cgroup", encoding="ascii") as f:
        own = dict(line.rstrip("\n").split(":", 2)[1:] for line in f)
    v1 = next((c for c in own if "cpu" in c.split(",")), None)
    base = "/sys/fs/cgroup" + (f"/cpu{own[v1]}" if v1 else own.get("", "/nowhere"))
    group = os.path.join(base, f"kvd-test-{os.getpid()}")
    try:
        os.mkdir(group)
    except OSError as e:
        raise Skip(f"no control group can be made: {e}") from e
    try:
        for name, text in ((("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", f"{percent}000"))
                           if v1 else (("cpu.max", f"{percent}000 100000"),)):
            with open(os.path.join(group, name), "w", encoding="ascii") as f:
                f.write(text)
    except OSError as e:
        os.rmdir(group)
        raise Skip(f"no CPU quota can be set: {e}") from e
    return group


def enter(group):
    with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as f:
        f.write("0")


def test_cpu_quota():
    """threads = 0 takes what the quota has room for; more is one warning and a row of doctor."""
    group = quota_group(150)
    small = {"cache.kv_cache_memory": "32M"}
    try:
        for threads, want, warned in ((0, 1, False), (2, 2, True)):
            with Daemon({**small, "cpu.threads": threads}, start=False) as d:
                d.popen["preexec_fn"] = lambda: enter(group)
                d.start()
                stats = d.stats()
                equal((stats["threads"], stats["cpus"]), (want, 1), "threads and CPUs")
                equal("threads is 2" in d.log(), warned, "a warning")
                equal(bool(re.search("^warn  threads ", d.kvctl("doctor").stdout, re.M)), warned,
                      "row of doctor")
    finally:
        os.rmdir(group)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
