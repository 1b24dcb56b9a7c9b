#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user can see of another one: nothing. Each answer to an ordinary client is the same
whether or not others work, and so is the time of a lookup."""
import contextlib
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

import kvdtest
import tinygguf
from kvdtest import BUILD, SANITIZED, Daemon, Skip, equal, limit, until

ME, OTHER = 61001, 61002
SPY = os.path.join(BUILD, "tests", "system", "spy")


@contextlib.contextmanager
def tiny_daemon(**options):
    if os.getuid() != 0:
        raise Skip("needs root, to become two other users")
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "tiny.gguf"), n_vocab=1024)
        with Daemon({"cache.kv_cache_memory": "64M", **options}, model=model) as d:
            os.chmod(d.socket, 0o666)
            yield d


def abi(name):
    """Offset and size of a field, as tests/abi has them."""
    with open(os.path.join(kvdtest.ROOT, "tests", "abi", "abi-1.txt"), encoding="ascii") as f:
        at = re.search(rf"^struct {name} offset (\d+) size (\d+)$", f.read(), re.M)
    return int(at.group(1)), int(at.group(2))


class Peer:
    """A client of some uid, without the library; it says what is in the table and no more."""

    def __init__(self, d, uid, name):
        with open(os.path.join(kvdtest.ROOT, "ipc", "include", "kvd", "proto.h"),
                  encoding="utf-8") as f:
            magic = int(re.search(r"KVD_HELLO_MAGIC\s+(0x\w+?)u\b", f.read()).group(1), 16)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        os.setegid(uid)
        os.seteuid(uid)
        try:
            self.socket.connect(d.socket)
        finally:
            os.seteuid(0)
            os.setegid(0)
        self.welcome = self.ask(1, struct.pack("<IIQ64s", magic, 1, 0, name.encode()))
        self.ring = None

    def ask(self, kind, body=b""):
        self.socket.send(struct.pack("<IHHIi", 16 + len(body), kind, 0, 7, 0) + body)
        reply, fds, _, _ = socket.recv_fds(self.socket, 65536, 4)
        self.fds = fds
        return reply

    def open_ring(self, cq=64):
        reply = self.ask(2, struct.pack("<IIIIQQ", 16, cq, 0, 0, 65536, 65536))
        (self.sq_n, self.cq_n, self.sq_off, self.cq_off, self.in_off, _, self.out_off, _,
         c2d, d2c) = struct.unpack_from("<IIQQQQQQQQ", reply, 24)
        self.ring = self.fds
        self.c2d = mmap.mmap(self.ring[0], c2d)
        self.d2c = mmap.mmap(self.ring[1], d2c, prot=mmap.PROT_READ)
        self.tail = self.head = 0
        return reply

    def submit(self, opcode, tokens=(), params=b"", user_data=1, kind=1, arg=0, out=0):
        data = struct.pack(f"<{len(tokens)}I", *tokens)
        self.c2d[self.in_off:self.in_off + len(data)] = data
        at = self.in_off + 32768
        self.c2d[at:at + len(params)] = params
        slot = self.sq_off + 64 * (self.tail % self.sq_n)
        self.c2d[slot + 8:slot + 64] = struct.pack(
            "<QBBHIQQIIQQ", user_data, opcode, 0, kind if data else 0, len(data), 0, 0, out,
            len(params), 32768 if params else 0, arg)
        self.tail += 1
        self.c2d[slot:slot + 8] = struct.pack("<Q", self.tail)
        os.write(self.ring[2], struct.pack("<Q", 1))

    def op(self, *args, **more):
        """All CQEs of one operation. How long it took, and the name of a prefix, are left out."""
        self.submit(*args, **more)
        told, deadline = [], time.monotonic() + 60
        while not told or told[-1][20] & 1:
            slot = self.cq_off + 64 * (self.head % self.cq_n)
            while self.d2c[slot:slot + 8] != struct.pack("<Q", self.head + 1):
                assert time.monotonic() < deadline, f"no answer to {args}"
                time.sleep(0.0002)
            self.head += 1
            cqe = bytearray(self.d2c[slot:slot + 64])
            self.c2d[0:8] = struct.pack("<Q", self.head)
            if not cqe[20] & 1:
                for field in ("ttft_ns", "total_ns") + (("detail",) if args[0] == 9 else ()):
                    at, n = abi(f"kvd_cqe_usage.{field}")
                    cqe[24 + at:24 + at + n] = bytes(n)
            told.append(bytes(cqe))
        return b"".join(told)

    def close(self):
        if self.ring:
            self.c2d.close()
            self.d2c.close()
            for fd in self.ring:
                os.close(fd)
        self.socket.close()


def generate_params(n, keep=False):
    """Goes on to the end; GEN_IGNORE_EOS and perhaps GEN_KEEP."""
    with open(os.path.join(kvdtest.ROOT, "ipc", "include", "kvd", "abi.h"), encoding="utf-8") as f:
        text = f.read()
    bits = [int(re.search(rf"#define KVD_GEN_{name}\s+\(1u << (\d+)\)", text).group(1))
            for name in ["IGNORE_EOS"] + ["KEEP"] * keep]
    return struct.pack("<III", 64, sum(1 << bit for bit in bits), n).ljust(64, b"\0")


def blank(reply, *fields, first=16, entry=0):
    """Without what may differ for good reason: times, and names of prefixes."""
    reply = bytearray(reply)
    for field in fields:
        at, n = abi(field)
        for start in range(first + at, len(reply), entry or len(reply)):
            reply[start:start + n] = bytes(n)
    return bytes(reply)


MINE = [5 + i % 50 for i in range(40)]
THEIRS = [900 - i % 70 for i in range(100)]
# Every message and every opcode, with what an ordinary client may ask about others.
MESSAGES = [
    ("RING_OPEN too large", 2, struct.pack("<IIIIQQ", 16, 64, 0, 0, 1 << 60, 0)),
    ("RING_CLOSE of none", 3, struct.pack("<II", 99, 0)),
    ("STATS", 4, b""),
    ("CLIENTS", 5, struct.pack("<QII", 0, 0, 0)),
    ("CLIENTS from the second", 5, struct.pack("<QII", 1, 0, 0)),
    ("CACHE_FLUSH of the other", 6, struct.pack("<II64s64s", 0, 0, b"uid:61002", b"")),
    ("CACHE_FLUSH of all that is public", 6, struct.pack("<II64s64s", 0, 0, b"public", b"")),
    ("CACHE_FLUSH of a model", 6, struct.pack("<II64s64s", 0, 0, b"", b"none")),
    *[(f"PREFIX_CONTROL {action} of {i}", 7, struct.pack("<IIQ", action, 0, 0xfff00000 + i << 32 | i))
      for action in (1, 2, 3) for i in range(4)],
    ("QUOTA", 9, struct.pack("<IIIIIIIIIIQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
    ("QUOTA of the other", 9, struct.pack("<IIIIIIIIIIQ", 4, OTHER, 0, 0, 0, 0, 9, 0, 0, 0, 0)),
    *[(f"DRAIN {action}", 10, struct.pack("<II", action, 0)) for action in (0, 1, 2)],
    ("CACHE_LIST", 12, struct.pack("<Q", 0)),
    ("EVENTS", 13, b""),
    *[(f"message {kind}", kind, bytes(48)) for kind in (8, 11, 14, 15, 0x8004)],
]
OPS = [
    ("NOP", (0,), {}),
    ("GENERATE", (1, MINE, generate_params(3)), {}),
    ("SCORE", (2, MINE), {"out": 320}),
    ("TOKENIZE", (3, MINE), {"kind": 2, "out": 64}),
    ("DETOKENIZE", (4, MINE), {"out": 64}),
    ("CANCEL of the other's", (5,), {"arg": 7777}),
    ("FORK of the other's", (8, MINE, generate_params(1)), {"arg": 7777}),
    ("PREFIX_LOOKUP", (9, MINE), {}),
    ("PREFIX_LOOKUP of the other's", (9, THEIRS), {}),
    *[(f"opcode {n}", (n, MINE), {}) for n in (6, 7, 10, 15, 255)],
]


def look_around(d, peer):
    """One answer to each row of the tables, and to a new connection."""
    told = {}
    new = Peer(d, ME, "new")
    told["WELCOME"] = blank(new.welcome, "kvd_server_info.generation")
    told["RING_OPEN"] = new.open_ring()
    new.close()
    until(lambda: len(d.clients()) and not any(c["name"] == "new" for c in d.clients()), 10,
          "the connection has gone")
    for name, args, more in OPS:
        told[name] = peer.op(*args, **more)
    for name, kind, body in MESSAGES:
        reply = peer.ask(kind, body)
        if kind == 4:
            reply = blank(reply, "kvd_stats.generation", "kvd_stats.uptime_ns")
        elif kind == 5:
            reply = blank(reply, "kvd_client_info.connected_ns", "kvd_client_info.ttft_ns",
                          first=32, entry=struct.unpack_from("<I", reply, 20)[0])
        elif kind == 12:
            reply = blank(reply, "kvd_prefix_info.id", first=32,
                          entry=struct.unpack_from("<I", reply, 20)[0])
        told[name] = reply
    return told


@limit(600)
def test_answers_are_the_same_whatever_others_do():
    rounds = []
    for busy in (False, True):
        with tiny_daemon() as d:
            me, others, told = Peer(d, ME, "me"), [], []
            me.open_ring()
            for i in range(3):
                if busy:
                    # One more connection, a prompt that is new and then is not, and a request
                    # that goes on for as long as nobody reads its answer.
                    other = Peer(d, OTHER, f"other {i}")
                    other.open_ring(cq=8)
                    for _ in range(2):
                        other.op(1, THEIRS, generate_params(5))
                    other.submit(1, THEIRS, generate_params(800), user_data=7777)
                    others.append(other)
                    until(lambda: d.stats()["requests"]["running"] == len(others), 20,
                          "their requests run")
                told.append(look_around(d, me))
            for peer in (me, *others):
                peer.close()
            rounds.append(told)
    for i, (idle, busy) in enumerate(zip(*rounds)):
        equal(list(busy), list(idle), "rows")
        for name, want in idle.items():
            equal(busy[name].hex(), want.hex(), f"round {i}: {name}")
    # The table asks for what there is: its own prompt is found, its own request was counted.
    first, last = rounds[0][0], rounds[0][2]
    assert first["STATS"] != last["STATS"] and first["PREFIX_LOOKUP"][16] > 0, "nothing was done"


def spread(trials):
    """Four standard deviations of the AUC of two halves that do not differ."""
    half = trials / 2
    return 4 * ((2 * half + 1) / (12 * half * half)) ** 0.5


def spy(trials):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("needs a CPU for the loop and one for who watches it")
    with tiny_daemon() as d:
        os.sched_setaffinity(d.process.pid, {cpus[0]})
        done = subprocess.run([SPY, str(trials), str(cpus[1])], env=d.env(), check=False,
                              capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    for t in told:
        print(f"# {t['kind']}: AUC {t['auc']:.3f} of {t['trials']} trials, medians "
              f"{t['asked_ns']} and {t['other_ns']} ns")
    return told


@limit(3600)
def test_lookups_take_as_long_whatever_others_ask():
    if SANITIZED:
        raise Skip("times are those of sanitizers")
    trials = kvdtest.rounds(10000)
    for tries in range(3):
        told = spy(trials)
        for t in told:
            if not t["same_user"]:
                assert abs(t["auc"] - 0.5) <= max(0.05, spread(trials)), t
        # The probe can see what there is to see, unless the machine is too busy for that.
        worst = min((t for t in told if t["same_user"]), key=lambda t: abs(t["auc"] - 0.5))
        if abs(worst["auc"] - 0.5) > 0.45:
            return
    raise AssertionError(f"{worst}, in {tries + 1} runs")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
