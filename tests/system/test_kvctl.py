#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kvctl as its manual describes it: keys, exit codes, messages, streams."""
import ctypes
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

import kvdtest
from kvdtest import (FAILED, KVCTL, NOT_RUNNING, OK, PERMISSION, TIMED_OUT, USAGE, Daemon, Skip,
                     equal, prose)

SMALL = {"cache.kv_cache_memory": "64M"}
STATS_KEYS = {
    "": {"version", "generation", "uptime_s", "backend", "model", "cache", "requests", "tokens",
         "clients"},
    "model": {"name", "arch", "fingerprint", "context_length"},
    "cache": {"format", "block_tokens", "block_bytes", "bytes_per_token", "blocks_total",
              "blocks_free", "blocks_cached", "blocks_active", "blocks_pinned",
              "queried_tokens", "hit_tokens", "shared_hit_tokens", "evicted_blocks"},
    "requests": {"running", "waiting", "completed", "failed", "cancelled"},
    "tokens": {"prompt", "generated"},
}


def test_stats():
    with Daemon(SMALL) as d:
        stats = d.stats()
        for part, keys in STATS_KEYS.items():
            got = stats[part] if part else stats
            assert keys <= set(got), f"keys missing in {part!r}: {keys - set(got)}"
        equal(stats["model"]["arch"], "llama", "arch")
        equal(stats["model"]["context_length"], 8192, "context_length")
        equal(len(stats["model"]["fingerprint"]), 64, "digits of the fingerprint")
        equal(stats["cache"]["format"], "fp16", "format")
        equal(stats["cache"]["block_tokens"], 16, "block_tokens")
        # 30 layers, 3 KV heads of 64, K and V, two bytes each.
        equal(stats["cache"]["bytes_per_token"], 23040, "bytes_per_token")
        equal(stats["cache"]["block_bytes"], 16 * 23040, "block_bytes")
        equal(stats["cache"]["blocks_total"], (64 << 20) // (16 * 23040), "blocks_total")
        got = d.generate(prose(30, 1), tokens=8)
        after = d.stats()
        equal(after["requests"]["completed"] - stats["requests"]["completed"], 1, "completed")
        equal(after["tokens"]["prompt"] - stats["tokens"]["prompt"], got["prompt_tokens"],
              "prompt tokens")
        equal(after["tokens"]["generated"] - stats["tokens"]["generated"], 8, "generated")
        text = d.kvctl("stats").stdout
        assert "shared hit tokens" in text and "{" not in text
        assert "SmolLM2" in d.kvctl("status").stdout or "llama" in d.kvctl("status").stdout


def test_generate():
    with Daemon(SMALL) as d:
        got = d.generate("What is the capital of France?", raw=False, tokens=64)
        equal(set(got), {"text", "tokens", "finish_reason", "prompt_tokens", "cached_tokens",
                         "ttft_ms", "tokens_per_s", "seed"}, "keys")
        equal(got["text"], "The capital of France is Paris.", "answer")
        equal(got["finish_reason"], "stop", "finish_reason")
        equal(d.generate(prose(9, 2), tokens=5)["finish_reason"], "length", "finish_reason")
        plain = d.kvctl("generate", "What is the capital of France?")
        equal(plain.stdout, "The capital of France is Paris.\n", "stdout")
        equal(plain.stderr, "", "stderr")
        piped = d.kvctl("generate", "-", text="What is the capital of France?")
        equal(piped.stdout, plain.stdout, "the prompt from stdin")
        system = d.generate("Who are you?", raw=False, tokens=8, system="You are a lighthouse.")
        other = d.generate("Who are you?", raw=False, tokens=8)
        assert system["prompt_tokens"] != other["prompt_tokens"], "--system changes nothing"
        stopped = d.generate("What is the capital of France?", raw=False, stop=[" is"])
        equal((stopped["text"], stopped["finish_reason"]), ("The capital of France", "stop"),
              "text before a stop string")
        report = os.path.join(d.folder, "report.json")
        d.kvctl("generate", "--report", report, "What is the capital of France?")
        with open(report, encoding="utf-8") as f:
            equal(json.load(f)["text"], got["text"], "text of the report")


def test_several_answers():
    """generate -n: each answer is what its own seed gives alone, apart from the others."""
    prompt = prose(12, 3)
    with Daemon({**SMALL, "daemon.max_inflight_per_client": 4}) as d:
        ask = ["generate", "--raw", "--max-tokens", "16", "--temperature", "1"]
        alone = [json.loads(d.kvctl(*ask, "--seed", str(5 + i), "--json", "--logprobs", prompt).stdout)
                 for i in range(3)]
        report = os.path.join(d.folder, "report.json")
        done = d.kvctl(*ask, "--seed", "5", "-n", "3", "--json", "--logprobs", "--report", report, prompt)
        got = json.loads(done.stdout)
        equal(set(got), {"choices"}, "keys")
        equal([c["index"] for c in got["choices"]], [0, 1, 2], "indices")
        for i, choice in enumerate(got["choices"]):
            equal(set(choice), set(alone[i]) | {"index"}, "keys of a choice")
            for key in ("text", "tokens", "logprobs", "finish_reason", "prompt_tokens", "seed"):
                equal(choice[key], alone[i][key], f"{key} of choice {i}")
        with open(report, encoding="utf-8") as f:
            equal(json.load(f)["choices"], got["choices"], "the report")
        text = d.kvctl(*ask, "--seed", "5", "--choices", "3", prompt)
        want = "\n".join(f"== answer {i + 1} of 3 ==\n{a['text']}\n" for i, a in enumerate(alone))
        equal((text.stdout, text.stderr), (want, ""), "the answers as text")
        equal(d.kvctl(*ask, "--seed", "5", "-n", "1", prompt).stdout, alone[0]["text"] + "\n", "-n 1")
        done = d.kvctl(*ask, "-n", "5", prompt, status=kvdtest.BUSY)
        equal(done.stdout, "", "stdout of a request that is refused as a whole")
        assert "(4)" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        done = d.kvctl(*ask, "-n", "2", "-", text=prose(9000, 1), status=FAILED)
        assert "8192 is the limit" in done.stderr, done.stderr


def test_clients_and_limits():
    """What each client and its user have, beside what the user may have."""
    with Daemon(SMALL) as d:
        d.kvctl("cache", "quota", "--user", str(os.getuid()), "--max-running", "7",
                "--max-waiting", "9", "--max-blocks", "100")
        child = d.spawn_generate(prose(9, 1), tokens=2000, temperature=1.5)
        kvdtest.until(lambda: d.stats()["tokens"]["generated"] > 3, 30, "the answer begins")
        got = json.loads(d.kvctl("clients", "--json").stdout)
        row = next(c for c in got["clients"] if c["pid"] == child.pid)
        user = next(u for u in got["users"] if u["uid"] == os.getuid())
        equal([user[k] for k in ("running", "max_running", "max_waiting", "max_blocks",
                                 "max_connections", "max_arena_bytes")],
              [1, 7, 9, 100, 32, 1 << 30], "use and limits of the user")
        assert user["connections"] == 2 and 0 < user["blocks"], user
        # Of two connections only the one that generates has a ring. Its request counts too.
        assert 0 < row["arena_bytes"] < user["arena_bytes"] < row["arena_bytes"] + 65536, user
        text = d.kvctl("clients").stdout
        assert "1/7" in text and "0/9" in text and "/32" in text and "/1048576" in text, text
        kvdtest.kill(child)
        child.out.close()


def test_seeds():
    with Daemon(SMALL) as d:
        def ask(seed):
            return d.generate(prose(12, 3), tokens=16, temperature=1.0, seed=seed)["tokens"]

        equal(ask(1), ask(1), "two answers for one seed")
        assert len({tuple(ask(seed)) for seed in range(6)}) > 3, "seeds make no difference"


def test_answer_comes_as_it_is_made():
    with Daemon(SMALL) as d:
        child = d.spawn([KVCTL, "generate", "--raw", "--max-tokens", "200", prose(12, 4)],
                        stdout=subprocess.PIPE)
        first = child.stdout.read1(1)
        running = child.poll() is None and d.stats()["requests"]["running"]
        rest = child.stdout.read()
        child.stdout.close()
        equal(child.wait(30), 0, "exit code")
        assert first and rest and running, "nothing came before the end"


def test_json_is_always_valid():
    """Sampled at a high temperature the model writes broken UTF-8; the output is JSON."""
    with Daemon(SMALL) as d:
        for seed in range(6):
            got = d.generate("\u00e9\u4e16\U0001f600", tokens=64, temperature=60, seed=seed)
            assert len(got["tokens"]) > 0
        # 0xff in an argument is not UTF-8: refused, with the place.
        done = subprocess.run([KVCTL.encode(), b"tokenize", b"--json", b"ab\xff"], env=d.env(),
                              capture_output=True, check=False)
        equal(done.returncode, FAILED, "exit code for bad UTF-8")
        assert done.stderr.startswith(b"kvctl: ")


USAGES = [
    [], ["--bogus"], ["bogus"], ["generate"], ["generate", "a", "b"], ["stats", "x"],
    ["generate", "--max-tokens", "many", "x"], ["generate", "--max-tokens", "-1", "x"],
    ["generate", "--max-tokens", "1e3", "x"], ["generate", "--max-tokens", "99999999999", "x"],
    ["generate", "--max-tokens", "", "x"], ["generate", "--temperature", "warm", "x"],
    ["generate", "--temperature", "-1", "x"], ["generate", "--temperature", "nan", "x"],
    ["generate", "--top-p", "1.5", "x"], ["generate", "--seed", "0x12", "x"],
    ["generate", "--seed", "18446744073709551616", "x"], ["generate", "--stop", "", "x"],
    ["generate", "--max-tokens"], ["generate", "--raw", "--system", "s", "x"],
    ["cache"], ["cache", "clear"], ["cache", "flush"], ["latency", "--count", "0"],
    ["--timeout", "soon", "stats"], ["top"], ["top", "-b", "-n", "0"], ["top", "-b", "-o", "x"],
    ["top", "-b", "-d", "0"], ["top", "-x"], ["stats", "-b"],
    ["generate", "-n", "0", "x"], ["generate", "-n", "17", "x"], ["generate", "-n", "x"],
    ["drain", "x"], ["drain", "--wait", "--off"],
    ["doctor", "x"], ["monitor", "x"], ["monitor", "--count", "0"],
]


def test_usage_errors():
    """One line on stderr and exit code 2, whether a daemon runs or not."""
    for args in USAGES:
        done = subprocess.run([KVCTL, *args], capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=20,
                              env={**os.environ, "KVD_SOCKET": "/nonexistent/kvd.sock"})
        equal(done.returncode, USAGE, f"exit code of {args}")
        equal(done.stdout, "", f"stdout of {args}")
        if args:
            lines = done.stderr.strip().split("\n")
            assert len(lines) == 1 and lines[0].startswith("kvctl: "), f"{args}: {done.stderr!r}"


def test_daemon_not_running():
    for verb in (["status"], ["stats"], ["clients"], ["generate", "x"], ["tokenize", "x"],
                 ["score", "x"], ["latency"], ["cache", "flush", "--yes"], ["top", "-b"], ["monitor"]):
        done = subprocess.run([KVCTL, "-s", "/nonexistent/kvd.sock", *verb], text=True,
                              capture_output=True, timeout=20, check=False,
                              stdin=subprocess.DEVNULL)
        equal(done.returncode, NOT_RUNNING, f"exit code of {verb}")
        assert "/nonexistent/kvd.sock" in done.stderr, done.stderr
        equal(len(done.stderr.strip().split("\n")), 1, f"lines on stderr: {done.stderr!r}")


def test_timeout():
    with Daemon(SMALL) as d:
        begin = time.monotonic()
        done = d.kvctl("generate", "--timeout", "1", "--raw", "--max-tokens", "0",
                       "--temperature", "1.5", prose(9, 1), status=None)
        assert done.returncode in (TIMED_OUT, OK), done.returncode
        assert time.monotonic() - begin < 10
        equal(d.kvctl("--timeout", "20", "stats", "--json").returncode, OK, "in time")


def test_help():
    for args in (["--help"], ["help"], *[[verb, "--help"] for verb in
                 ("status", "stats", "clients", "cache", "generate", "tokenize", "score",
                  "latency", "plan", "top", "doctor", "monitor", "drain")]):
        done = subprocess.run([KVCTL, *args], capture_output=True, text=True, check=True)
        assert "usage: kvctl" in done.stdout and done.stderr == ""
    done = subprocess.run([KVCTL, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kvctl 0."), done.stdout


def test_long_prompts():
    with Daemon(SMALL) as d:
        # Beyond the context, and beyond the pool of 2,900 tokens but within the context.
        for n_words in (9000, 3000):
            done = d.kvctl("generate", "--raw", "--max-tokens", "4", "-",
                           text=prose(n_words, 1), status=None)
            assert done.returncode not in (OK, USAGE, NOT_RUNNING), done.returncode
            # The tokens of the prompt and how many there may be.
            n_tokens = len(d.tokenize(prose(n_words, 1)))
            limit = 8192 if n_words == 9000 else 182 * 16
            assert f"({n_tokens} tokens; {limit} is the limit)" in done.stderr, done.stderr
        equal(d.kvctl("generate", "--raw", "-", text="", status=None).returncode, FAILED,
              "exit code for an empty prompt")


def test_latency():
    with Daemon(SMALL) as d:
        got = json.loads(d.kvctl("latency", "--json", "--count", "200").stdout)
        equal(got["count"], 200, "count")
        assert 0 < got["min_us"] <= got["p50_us"] <= got["p99_us"] <= got["max_us"]


def top(d, *args):
    return [json.loads(line) for line in d.kvctl("top", "--json", *args).stdout.splitlines()]


def test_top():
    """Rows of clients in the order that was asked for, and rates between two samples."""
    with Daemon(SMALL) as d:
        child = d.spawn_generate(prose(9, 1), tokens=2000, temperature=1.5)
        kvdtest.until(lambda: d.stats()["tokens"]["generated"] > 3, 30, "the answer begins")
        two = top(d, "-n", "2", "-d", "0.5")
        equal(len(two), 2, "samples of -n 2")
        rows = [next(c for c in one["clients"] if c["pid"] == child.pid) for one in two]
        equal([(r["state"], r["running"], r["failed"]) for r in rows], [("R", 1, 0)] * 2, "rows")
        made = rows[1]["generated_tokens"] - rows[0]["generated_tokens"]
        passed = rows[1]["connected_s"] - rows[0]["connected_s"]
        assert made > 0 and passed >= 0.5, (made, passed)
        assert abs(rows[1]["tokens_per_s"] * passed - made) < 1e-3 * made, (made, passed, rows)
        assert abs(rows[0]["tokens_per_s"] * rows[0]["connected_s"] -
                   rows[0]["generated_tokens"]) < 0.01, rows
        assert rows[1]["blocks"] >= rows[0]["blocks"] > 0, rows
        # kvctl itself is there as well, and does nothing.
        equal([c["state"] for c in two[1]["clients"] if c["pid"] != child.pid], ["I"], "others")
        equal([c["pid"] for c in top(d, "-n", "1", "-o", "tok")[0]["clients"]][0], child.pid,
              "the first by tok")
        ids = [c["id"] for c in top(d, "-n", "1", "-o", "id")[0]["clients"]]
        equal(ids, sorted(ids), "by id")
        text = d.kvctl("top", "-b", "-n", "2", "-d", "0.1").stdout
        equal(text.count("TOK/s"), 2, "headings of two times")
        row = next(line.split() for line in text.splitlines() if f" {child.pid} " in line)
        equal(row[1], "kvctl", "CLIENT")
        assert "\033" not in text, "an escape sequence in a batch"
        kvdtest.kill(child)
        child.out.close()
        done = d.kvctl("top", "-b", "-d", "30", "--timeout", "0.5", status=TIMED_OUT)
        equal(done.stderr, "kvctl: no result within --timeout\n", "stderr at the time-out")


class GenOpts(ctypes.Structure):
    """struct kvc_gen_opts."""
    _fields_ = [("size", ctypes.c_size_t), ("max_tokens", ctypes.c_uint32),
                ("top_k", ctypes.c_uint32), ("temperature", ctypes.c_float),
                ("top_p", ctypes.c_float), ("min_p", ctypes.c_float),
                ("n_stop", ctypes.c_uint32), ("seed", ctypes.c_uint64),
                ("stop", ctypes.c_void_p), ("gen_flags", ctypes.c_uint32),
                ("input_flags", ctypes.c_uint32), ("n", ctypes.c_uint32),
                ("priority", ctypes.c_int32), ("timeout_ms", ctypes.c_uint32),
                ("fork_at", ctypes.c_uint32), ("salt", ctypes.c_uint64)]


class Client:
    """A connection of this process that stays."""

    def __init__(self, d):
        self.lib = ctypes.CDLL(os.path.join(kvdtest.BUILD, "client", "libkvclient.so.0"))
        self.handle = ctypes.c_void_p()
        os.environ["KVD_SOCKET"] = d.socket
        equal(self.lib.kvc_connect(ctypes.byref(self.handle), None), 0, "kvc_connect")
        del os.environ["KVD_SOCKET"]

    def generate(self, prompt, tokens):
        opts = GenOpts(size=ctypes.sizeof(GenOpts), max_tokens=tokens, gen_flags=2)
        return self.lib.kvc_generate(self.handle, prompt.encode(), ctypes.byref(opts), None)

    def close(self):
        self.lib.kvc_close(self.handle)


def test_top_counts():
    """TTFT, HIT% and ERR of a connection that stays, by the counts of its answers."""
    if kvdtest.SANITIZED:
        raise Skip("python cannot load a library with sanitizers")
    with Daemon(SMALL) as d:
        client = Client(d)

        def row():
            return next(c for c in top(d, "-n", "1")[0]["clients"] if c["pid"] == os.getpid())

        equal([row()[k] for k in ("state", "ttft_ms", "failed", "prompt_tokens")],
              ["I", 0, 0, 0], "a client without requests")
        prompt = prose(60, 1)
        n = len(d.tokenize(prompt))
        for _ in range(2):
            equal(client.generate(prompt, 8), 0, "kvc_generate")
        assert client.generate(prose(9000, 1), 8) < 0, "a prompt beyond the context"
        got = row()
        equal([got[k] for k in ("failed", "prompt_tokens", "cached_tokens", "generated_tokens")],
              [1, 2 * n, n - 1, 16], "counts")
        assert 0 < got["ttft_ms"] < 60000, got
        text = d.kvctl("top", "-b", "-n", "1", "-o", "err").stdout.splitlines()
        cells = text[-3].split()
        equal((cells[2], cells[-1]), (str(os.getpid()), "1"), "PID and ERR of the first row")
        equal(cells[-4], f"{100 * (n - 1) / (2 * n):.1f}", "HIT%")
        client.close()


class Terminal:
    """kvctl on a terminal of its own: what it writes, keys, the size of the window."""

    def __init__(self, d, *args, rows=24, columns=80):
        self.fd, inner = pty.openpty()
        self.before = termios.tcgetattr(inner)
        self.inner = inner
        self.resize(rows, columns)
        self.child = d.spawn([KVCTL, *args], stdin=inner, stdout=inner, stderr=inner)
        self.seen = ""

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if hasattr(self, "child"):
            self.child.send_signal(signal.SIGWINCH)

    def read(self, timeout=0.1):
        while select.select([self.fd], [], [], timeout)[0]:
            self.seen += os.read(self.fd, 65536).decode()
        return self.seen

    def wait_for(self, condition, what):
        kvdtest.until(lambda: condition(self.read()), 10, lambda: f"{what}: {self.seen!r}")

    def key(self, key):
        self.seen = ""
        os.write(self.fd, key.encode())

    def screen(self):
        """Lines of the last whole picture."""
        pictures = re.findall(r"\033\[H(.*?)\033\[J", self.read(), re.S)
        return [line.replace("\033[K", "") for line in pictures[-1].split("\r\n")] if pictures else []

    def close(self):
        os.close(self.fd)
        os.close(self.inner)


def test_top_on_a_terminal():
    with Daemon(SMALL) as d:
        for last in ("q", signal.SIGTERM, signal.SIGINT):
            t = Terminal(d, "top", "-d", "60")
            t.wait_for(lambda s: "TOK/s" in s and s.endswith("\033[J"), "a picture")
            assert t.seen.startswith("\033[?1049h"), t.seen
            assert not termios.tcgetattr(t.inner)[3] & termios.ECHO, "keys are shown"
            if last == "q":
                assert max(map(len, t.screen())) <= 80 and len(t.screen()) <= 24, t.screen()
                t.seen = ""
                t.resize(3, 20)
                t.wait_for(lambda s: s.endswith("\033[J"), "a picture after a change of size")
                equal((len(t.screen()), max(map(len, t.screen()))), (3, 20), "lines, columns")
                t.resize(24, 200)
                # By id the oldest is first: these are kvctl latency and kvctl top.
                other = d.spawn([KVCTL, "latency", "--count", "100000", "--interval", "50"],
                                stdout=subprocess.DEVNULL)
                kvdtest.until(lambda: len(d.clients()) == 3, 10, "another client")
                pids = [t.child.pid, other.pid]
                for keys in (" i", "r"):
                    t.key(keys)
                    t.wait_for(lambda s: s.endswith("\033[J") and str(other.pid) in s, "both")
                    time.sleep(0.2)
                    got = [int(line.split()[2]) for line in t.screen()[6:] if line.strip()]
                    equal(got, pids, f"processes after the keys {keys!r}")
                    pids.reverse()
                kvdtest.kill(other)
                t.key("q")
            else:
                t.child.send_signal(last)
            equal(t.child.wait(10), OK, f"exit code after {last}")
            assert t.read().endswith("\033[?25h\033[?1049l"), t.seen
            equal(termios.tcgetattr(t.inner), t.before, "the terminal's modes")
            t.close()


class Monitor:
    """kvctl monitor, and the events that it has printed."""

    def __init__(self, d):
        self.d = d
        self.out = tempfile.TemporaryFile()
        self.child = d.spawn([KVCTL, "monitor"], stdout=self.out)
        # It watches when it sees itself or anybody come.
        kvdtest.until(lambda: d.kvctl("status") and self.events(), 10, "an event")

    def events(self, kind=None, **fields):
        self.out.seek(0)
        all_of = [json.loads(line) for line in self.out.read().decode().splitlines()]
        return [e for e in all_of if kind in (None, e["event"]) and
                all(e.get(k) == v for k, v in fields.items())]

    def wait_for(self, kind, **fields):
        return kvdtest.until(lambda: self.events(kind, **fields), 10,
                             lambda: f"{kind} {fields} among {self.events()}")

    def close(self, sig=signal.SIGTERM):
        self.child.send_signal(sig)
        equal(self.child.wait(10), -sig, "ends by a signal")
        self.out.close()


def test_monitor():
    with Daemon({"cache.kv_cache_memory": "8M", "daemon.max_clients_per_uid": "4"}) as d:
        m = Monitor(d)
        before = time.time()
        got = d.generate(prose(60, 1), tokens=8)
        e = m.wait_for("request")[0]
        equal([e[k] for k in ("op", "status", "finish_reason", "prompt_tokens", "cached_tokens",
                              "generated_tokens", "uid", "name")],
              ["generate", 0, "length", got["prompt_tokens"], 0, 8, os.getuid(), "kvctl"], "request")
        assert before - 1 < e["time"] < time.time() + 1 and 0 < e["ttft_ms"] <= e["total_ms"], e
        m.wait_for("disconnect", client=e["client"], requests=0)
        order = [x["event"] for x in m.events(client=e["client"])]
        equal(order, ["connect", "request", "disconnect"], "order")
        d.generate(prose(60, 1), tokens=8)
        # all but the one whose logits are wanted, also inside of the last block
        m.wait_for("request", cached_tokens=got["prompt_tokens"] - 1)
        d.kvctl("generate", "--raw", "-", text=prose(9000, 1), status=None)
        bad = m.wait_for("request", finish_reason="error")[0]
        assert bad["status"] < 0 and bad["error"].startswith(("KVD_E_", "E")), bad
        d.kvctl("score", prose(9, 1))
        m.wait_for("request", op="score", status=0)

        flushed = json.loads(d.flush().stdout)["flushed_blocks"]
        assert flushed > 0
        m.wait_for("flush", blocks=flushed)
        for seed in range(2, 8):
            d.generate(prose(120, seed), tokens=2)
        evicted = d.stats()["cache"]["evicted_blocks"]
        assert evicted > 0
        kvdtest.until(lambda: sum(x["blocks"] for x in m.events("evict")) == evicted, 10,
                      lambda: f"{evicted} evictions: {m.events('evict')}")
        d.kvctl("cache", "quota", "--user", "12345", "--max-running", "3")
        m.wait_for("quota", uid=12345)

        # A request that its client leaves behind; connections beyond the limit.
        child = d.spawn_generate(prose(9, 1), tokens=300, temperature=1.5)
        kvdtest.until(lambda: d.stats()["requests"]["running"], 10, "it runs")
        kvdtest.kill(child)
        child.out.close()
        m.wait_for("disconnect", requests=1)
        many = [d.spawn([KVCTL, "latency", "--count", "100000", "--interval", "50"],
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(5)]
        m.wait_for("limit", error="KVD_E_QUOTA", uid=os.getuid())
        for child in many:
            kvdtest.kill(child)
        kvdtest.until(lambda: d.kvctl("stats", status=None).returncode == OK, 10, "room again")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(d.socket)
            s.send(struct.pack("<IHHIiIIQ64s", 96, 1, 0, 1, 0, 0x3144564b, 1, 0, b"odd"))
            s.recv(65536)
            s.send(b"?")
            m.wait_for("fault", name="odd")
        m.wait_for("disconnect", name="odd")
        equal(m.events("lost"), [], "lost")
        m.close(signal.SIGINT)
        if os.getuid() == 0:
            d.kvctl("monitor", "--count", "1", status=PERMISSION, user=65534, group=0)


def test_monitor_that_does_not_read():
    """It loses events, is told how many, and nobody waits for it."""
    if kvdtest.SANITIZED:
        raise Skip("python cannot load a library with sanitizers")
    with Daemon(SMALL) as d:
        m = Monitor(d)
        kvdtest.until(lambda: len(m.events()) >= 2, 10, "connect and disconnect")
        time.sleep(0.3)
        seen = len(m.events())
        m.child.send_signal(signal.SIGSTOP)
        for _ in range(300):
            Client(d).close()
        # Behind the last of them in the daemon's queue of sessions that end.
        kvdtest.until(lambda: d.stats()["clients"] == 2, 10, "all are gone")
        m.child.send_signal(signal.SIGCONT)
        lost = m.wait_for("lost")[0]["count"]
        kept = m.events()[seen:]
        assert [e["event"] for e in kept][256] == "lost", "256 events before those that are lost"
        # Two for each of 300 clients; those of stats come and go as well.
        assert 600 - 256 <= lost <= 600 - 256 + 40, lost
        d.kvctl("status")
        kvdtest.until(lambda: m.events()[-1]["event"] == "disconnect", 10, "it goes on")
        m.close()


def test_full_disk():
    with Daemon(SMALL) as d, open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([KVCTL, "generate", "Hello"], env=d.env(), stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        equal(done.returncode, FAILED, "exit code when the output cannot be written")
        assert "output" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
