#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kvctl doctor: what it finds, on this machine and in the books of a daemon."""
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import kvdtest
from kvdtest import FAILED, KVCTL, NOT_RUNNING, OK, Daemon, equal, prose

SMALL = {"cache.kv_cache_memory": "64M"}


def doctor(path, status=OK, **env):
    """Its checks by name; with several of one name the last."""
    done = subprocess.run([KVCTL, "doctor", "--json", "-s", path], capture_output=True, text=True,
                          env={**os.environ, **env}, timeout=60, check=False)
    equal(done.returncode, status, f"exit code of doctor: {done.stdout} {done.stderr}")
    equal(done.stderr, "", "stderr")
    told = json.loads(done.stdout)
    order = ["ok", "skip", "warn", "fail"]
    equal(told["worst"], max((c["state"] for c in told["checks"]), key=order.index), "worst")
    return {c["name"]: c for c in told["checks"]}, told["pid"]


def test_doctor_of_a_well_daemon():
    with Daemon(SMALL) as d:
        child = d.spawn_generate(prose(9, 1), tokens=2000, temperature=1.5)
        kvdtest.until(lambda: d.stats()["tokens"]["generated"] > 3, 30, "the answer begins")
        checks, pid = doctor(d.socket)
        equal(pid, d.process.pid, "the daemon's process")
        for name in ("socket", "daemon", "model", "blocks", "sums", "limits"):
            equal(checks[name]["state"], "ok", name)
        equal({c["state"] for c in checks.values()} - {"ok", "warn"}, set(), "states")
        kvdtest.kill(child)
        child.out.close()
        d.kvctl("cache", "quota", "--user", str(os.getuid()), "--max-connections", "1")
        checks, _ = doctor(d.socket)
        equal(checks["limits"]["state"], "warn", "a user at its limit")
        assert "--max-connections" in checks["limits"]["fix"], checks["limits"]
        text = d.kvctl("doctor").stdout
        assert re.search(r"^ok    blocks +free ", text, re.M), text
        assert re.search(r"^warn  limits .*\n +fix: kvctl cache quota", text, re.M), text
        d.kvctl("cache", "quota", "--user", str(os.getuid()), "--max-connections", "0")


def test_doctor_without_daemon():
    checks, pid = doctor("/nonexistent/kvd.sock", status=NOT_RUNNING)
    equal((checks["socket"]["state"], checks["daemon"]["state"], pid), ("fail", "fail", 0), "states")
    assert "systemctl" in checks["daemon"]["fix"] and "cpu" in checks, checks


CPU = "processor\t: 0\nflags\t\t: fpu sse2 fma f16c bmi2 avx2{}\nbugs\t\t: none\n"


def test_doctor_of_a_bad_machine():
    """Each setting of a machine as /proc and /sys tell it, in a folder of their own."""
    with Daemon({**SMALL, "daemon.io_backend": "epoll", "cpu.isa": "avx2"}) as d:
        root = os.path.join(d.folder, "root")

        def put(name, text):
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as f:
                f.write(text)

        def check(name, state, words):
            checks, _ = doctor(d.socket, KVCTL_DOCTOR_ROOT=root)
            equal(checks[name]["state"], state, f"{name}: {checks[name]}")
            assert words in checks[name]["text"] + checks[name]["fix"], checks[name]

        def status(thp=1, seccomp=2, rights=1, caps=0):
            return (f"Name:\tkvd\nTHP_enabled:\t{thp}\nCapBnd:\t{caps:016x}\n"
                    f"NoNewPrivs:\t{rights}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n")

        own = f"proc/{d.process.pid}/"
        put(own + "comm", "kvd\n")
        put(own + "fd/0", "")
        for flags, state, words in (("", "ok", "has avx2"), (" avx512f avx512bw avx512vl", "ok", ""),
                                    (" avx512f avx512bw avx512vl avx512dq", "warn", "isa = auto"),
                                    (" avx512f avx512bw avx512vl avx512dq avx512_vnni amx_tile"
                                     " amx_bf16", "warn", "arch_prctl")):
            put("proc/cpuinfo", CPU.format(flags))
            check("cpu", state, words)
        thp = "sys/kernel/mm/transparent_hugepage/enabled"
        for text, state, words in (("always madvise [never]\n", "warn", "echo madvise"),
                                   ("always [madvise] never\n", "ok", "on request")):
            put(thp, text)
            check("thp", state, words)
        put(own + "status", status(thp=0))
        check("thp", "warn", "huge_pages")
        put(own + "cgroup", "0::/kvd.slice/kvd.service\n")
        for now, state in (("1000000000", "warn"), ("100000000", "ok")):
            put("sys/fs/cgroup/kvd.slice/memory.max", "1000000000\n")
            put("sys/fs/cgroup/kvd.slice/memory.current", now)
            check("memory", state, "kvd.slice" if state == "warn" else "")
        for text, state in ((status(), "ok"), (status(seccomp=0), "warn"),
                            (status(rights=0), "warn"), (status(caps=1 << 21), "warn")):
            put(own + "status", text)
            check("sandbox", state, "selftest-sandbox" if state == "warn" else "filtered")
        check("io_uring", "warn", "io_backend")
        put("proc/sys/kernel/io_uring_disabled", "2\n")
        check("io_uring", "warn", "sysctl")
        os.remove(os.path.join(root, own, "fd/0"))
        os.symlink("anon_inode:[io_uring]", os.path.join(root, own, "fd/0"))
        check("io_uring", "ok", "in use")
        limits = ("Limit                     Soft Limit           Hard Limit           Units\n"
                  "Max open files            {}                 4096                 files\n"
                  "Max locked memory         unlimited            unlimited            bytes\n")
        for n, state in ((256, "warn"), (4096, "ok"), ("unlimited", "ok")):
            put(own + "limits", limits.format(n))
            check("files", state, "LimitNOFILE" if state == "warn" else "")
        check("memlock", "ok", "no limit")


class FakeDaemon(threading.Thread):
    """Answers with the numbers that a test puts into `fields`, "struct.field": value."""

    def __init__(self, fields):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "kvd.sock")
        self.fields = fields
        with open(os.path.join(kvdtest.ROOT, "tests", "abi", "abi-1.txt"), encoding="ascii") as f:
            self.layout = f.read()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.start()

    def fill(self, name):
        size = re.search(rf"^struct {name} size (\d+)$", self.layout, re.M)
        # A struct that grows has none.
        ends = [int(at) + int(n) for at, n in
                re.findall(rf"^struct {name}\.\w+ offset (\d+) size (\d+)$", self.layout, re.M)]
        data = bytearray(int(size.group(1)) if size else max(ends))
        for key, value in self.fields.items():
            struct_name, field = key.split(".")
            if struct_name == name:
                at, n = map(int, re.search(rf"^struct {name}\.{field} offset (\d+) size (\d+)$",
                                           self.layout, re.M).groups())
                raw = value if isinstance(value, bytes) else value.to_bytes(8, "little")
                data[at:at + n] = raw[:n].ljust(n, b"\0")
        return bytes(data)

    def serve(self, conn):
        while packet := conn.recv(65536):
            kind, tag = struct.unpack_from("<4xH2xI", packet)
            page = {5: "kvd_client_info", 9: "kvd_quota_info"}.get(kind)
            if kind == 1:
                body = self.fill("kvd_server_info") + self.fill("kvd_model_info")
            elif kind == 4:
                body = self.fill("kvd_stats")
            else:
                # Entries may be longer than the client knows.
                entry = self.fill(page) + bytes(64)
                body = struct.pack("<IIQ", 1, len(entry), 0) + entry
            conn.send(struct.pack("<IHHIi", 16 + len(body), 0x8000 + kind, 0, tag, 0) + body)

    def run(self):
        while True:
            conn, _ = self.listener.accept()
            with conn:
                if not self.folder:
                    return
                with contextlib.suppress(OSError):
                    self.serve(conn)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        folder, self.folder = self.folder, None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(self.path)
        self.join()
        self.listener.close()
        folder.cleanup()


EVEN = {
    "kvd_server_info.version": 1, "kvd_server_info.features": 1 << 5, "kvd_stats.size": 512,
    "kvd_stats.release": b"0.1.0", "kvd_stats.blocks_total": 10, "kvd_stats.blocks_free": 5,
    "kvd_stats.blocks_cached": 3, "kvd_stats.blocks_active": 2, "kvd_stats.clients": 1,
    "kvd_stats.requests_running": 1, "kvd_quota_info.running": 1, "kvd_quota_info.connections": 1,
    "kvd_client_info.id": 1, "kvd_stats.rings": 2, "kvd_client_info.rings": 2,
}


def test_doctor_finds_uneven_books():
    with FakeDaemon(dict(EVEN)) as fake:
        checks, _ = doctor(fake.path)
        for name, state in (("model", "warn"), ("blocks", "ok"), ("sums", "ok"), ("limits", "ok")):
            equal(checks[name]["state"], state, name)
        assert "version" not in checks and "contract" not in checks, checks
        for change, name, state, words in (
                ({"kvd_stats.blocks_free": 4}, "blocks", "fail", "!="),
                ({"kvd_stats.blocks_pinned": 3}, "counters", "fail", "pinned 3"),
                ({"kvd_stats.hit_tokens": 3}, "counters", "fail", "hits 3"),
                ({"kvd_stats.pool_bytes": 4096}, "counters", "fail", "4096"),
                ({"kvd_stats.rings": 3}, "sums", "fail", "2 rings, 3"),
                ({"kvd_quota_info.connections": 4}, "sums", "fail", "4 connections"),
                ({"kvd_quota_info.running": 0}, "sums", "fail", "0 running"),
                ({"kvd_stats.requests_running": 0, "kvd_quota_info.running": 0}, "sums", "fail",
                 "2 blocks are in use"),
                ({"kvd_stats.release": b"9.9"}, "version", "warn", "restart"),
                ({"kvd_stats.sessions_faulty": 7}, "contract", "warn", "journalctl")):
            fake.fields = {**EVEN, **change}
            checks, _ = doctor(fake.path, status=FAILED if state == "fail" else OK)
            equal(checks[name]["state"], state, f"{name} with {change}")
            assert words in checks[name]["text"] + checks[name]["fix"], checks[name]


def test_no_word_of_a_daemon_steers_the_terminal():
    """Each string that it sends, in each place where kvctl shows it: who serves the socket may
    be anybody."""
    bad = "x\x1b[2J\u009b2Jy\u202ez\n\t".encode()
    words = ("kvd_stats.release", "kvd_stats.backend", "kvd_stats.cache_format",
             "kvd_model_info.name", "kvd_model_info.arch", "kvd_client_info.name",
             "kvd_quota_info.domain", "kvd_server_info.release")
    with open(os.path.join(kvdtest.ROOT, "tests", "abi", "abi-1.txt"), encoding="ascii") as f:
        at = re.search(r"^struct kvd_stats.model offset (\d+) size \d+$", f.read(), re.M)
    with FakeDaemon({**EVEN, **dict.fromkeys(words, bad)}) as fake:
        plain = fake.fill

        def fill(name):
            """With a model in the statistics as well."""
            data, model = plain(name), plain("kvd_model_info")
            start = int(at.group(1))
            return (data if name != "kvd_stats" else
                    data[:start] + model + data[start + len(model):])

        fake.fill = fill
        for verb in (["status"], ["stats"], ["clients"], ["cache", "quota"], ["doctor"],
                     ["top", "-b", "-n", "1"], ["__complete", "models"]):
            for more in ([], ["--json"]):
                done = subprocess.run([KVCTL, *verb, *more, "-s", fake.path], timeout=60,
                                      capture_output=True, text=True, check=False)
                shown = done.stdout + done.stderr
                assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown), \
                    (verb, more, shown)
                if verb[0] in ("status", "stats", "clients", "top"):
                    assert "x" in shown and done.returncode == OK, (verb, more, shown)


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
