# SPDX-License-Identifier: MIT
"""Harness of the system suite: a private kvd, its clients, and what must always hold.

A test is a function whose name begins with `test_`. run() calls those of the calling
script in turn and prints TAP. Whatever a test does, at its end the daemon's own accounting
has to be even (free + cached + active = total), no request may be left over, and the
daemon has to have lived through it. Needs Python 3.9 and nothing else.

Environment: KVD_BUILD (build folder), KVD_MODEL (GGUF file), KVD_SHARED (cases),
KVD_TEST_SECONDS (length of each timed part), KVD_TEST_ROUNDS (counts of repeated parts,
per cent of the full number), KVD_TEST_DAEMON (another kvd than that of the build folder).
"""
import contextlib
import faulthandler
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("KVD_BUILD", os.path.join(ROOT, "build")))
KVD = os.environ.get("KVD_TEST_DAEMON", os.path.join(BUILD, "daemon", "kvd"))
KVCTL = os.path.join(BUILD, "client", "kvctl", "kvctl")
PROBE = os.path.join(BUILD, "tests", "system", "probe")
HOSTILE = os.path.join(BUILD, "tests", "system", "hostile")
SHARED = os.environ.get("KVD_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))
MODEL = os.environ.get("KVD_MODEL") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
    "kvd", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
PIPE = subprocess.PIPE
BLOCK = 16
SANITIZED = os.environ.get("KVD_SANITIZED") == "1"

# kvctl's exit codes, as its manual gives them.
OK, FAILED, USAGE, NOT_RUNNING, PERMISSION, NOT_FOUND, TIMED_OUT, BUSY = range(8)


class Skip(Exception):
    """This machine cannot run the test; the reason is its argument."""


def seconds(default):
    """Length of a timed part: KVD_TEST_SECONDS, else the given one, or half of it where
    KVD_TEST_ROUNDS asks for less than all."""
    some = int(os.environ.get("KVD_TEST_ROUNDS", "100")) < 100
    return float(os.environ.get("KVD_TEST_SECONDS", default * (0.5 if some else 1)))


def rounds(full):
    """How often a repeated part runs: all of it, or the share that KVD_TEST_ROUNDS says.

    Under sanitizers a fifth: there one round finds as much as the next."""
    share = int(os.environ.get("KVD_TEST_ROUNDS", "20" if SANITIZED else "100"))
    return max(1, full * share // 100)


def grace():
    """How long to wait for the daemon to tidy up, in seconds. It should take less than one;
    tests print what it took. The limit allows for a step in flight on a machine that others
    keep busy, which the load average tells late, and for sanitizers."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(5.0, 2 * load) * (5 if SANITIZED else 1)


def until(condition, timeout, what):
    """Wait for a condition, or fail naming it (what may be a function that says it)."""
    end = time.monotonic() + timeout
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.1f} s: {what() if callable(what) else what}")
        time.sleep(0.02)


def equal(got, want, what):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


class Daemon:
    """One kvd on a socket in a private folder. Use as a context manager."""

    def __init__(self, options=None, model=MODEL, args=(), start=True, folder_mode=0o755):
        self.folder = tempfile.mkdtemp(prefix="kvd-test.")
        os.chmod(self.folder, folder_mode)
        self.socket = os.path.join(self.folder, "kvd.sock")
        self.log_path = os.path.join(self.folder, "kvd.log")
        with open(os.path.join(self.folder, "kvd.conf"), "w", encoding="utf-8"):
            pass
        self.options = dict(options or {})
        self.model = model
        self.args = list(args)
        self.process = None
        self.popen = {}
        self.children = []
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def command(self):
        # A file of its own, so that the machine's /etc/kvd plays no part.
        command = [KVD, "--config", os.path.join(self.folder, "kvd.conf")]
        for key, value in {"daemon.socket": self.socket, "model.path": self.model,
                           **self.options}.items():
            command += ["-o", f"{key}={value}"]
        return command + self.args

    def start(self, timeout=120):
        with open(self.log_path, "ab") as log:
            mark = log.tell()
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, **self.popen)

        def serves():
            if self.process.poll() is not None:
                raise AssertionError(f"kvd ended with {self.process.returncode} at its start")
            return re.search(r"^socket: ", self.log()[mark:], re.M)

        until(serves, timeout, "kvd prints its socket")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self, sig=signal.SIGTERM, timeout=30):
        self.process.send_signal(sig)
        status = self.process.wait(timeout)
        self.process = None
        return status

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def close(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        if self.alive():
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            if kind is None and self.process is not None:
                self.check_even()
                status = self.stop()
                equal(status, 0, "exit status of kvd after SIGTERM")
            if kind is None:
                self.check_log()
        except BaseException:
            self.dump_log()
            raise
        finally:
            if kind is not None and not issubclass(kind, Skip):
                self.dump_log()
            self.close()

    def dump_log(self):
        with contextlib.suppress(OSError):
            print("# --- log of kvd", self.command(), file=sys.stderr)
            print("\n".join(self.log().split("\n")[-60:]), file=sys.stderr)

    def check_log(self):
        found = re.search(r"AddressSanitizer|LeakSanitizer|runtime error:|Assertion", self.log())
        assert not found, f"the daemon's log holds a report: {found.group(0)}"

    # --- what the daemon says of itself

    def stats(self, timeout=10):
        return json.loads(self.kvctl("stats", "--json", timeout=timeout).stdout)

    def clients(self):
        return json.loads(self.kvctl("clients", "--json").stdout)["clients"]

    def check_even(self):
        """No request is left, every block is accounted for."""
        def idle():
            stats = self.stats()
            return stats if (stats["requests"]["running"] == 0 and
                             stats["requests"]["waiting"] == 0 and
                             stats["cache"]["blocks_active"] == 0) else None

        cache = until(idle, 10, lambda: f"nothing active is left: {self.stats()}")["cache"]
        equal(cache["blocks_free"] + cache["blocks_cached"] + cache["blocks_active"],
              cache["blocks_total"], "free + cached + active")

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def n_maps(self):
        with open(f"/proc/{self.process.pid}/maps", encoding="ascii", errors="replace") as f:
            return sum(1 for _ in f)

    def rss(self):
        """Resident bytes without the block pool, whose pages come in as they are used."""
        pool = self.stats()["cache"]["pool_bytes"]
        total = size = 0
        with open(f"/proc/{self.process.pid}/smaps", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("Size:"):
                    size = int(line.split()[1]) * 1024
                elif line.startswith("Rss:") and not pool <= size <= pool + (4 << 20):
                    total += int(line.split()[1]) * 1024
        return total

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # --- clients

    def env(self):
        return {**os.environ, "KVD_SOCKET": self.socket}

    def kvctl(self, *args, text=None, status=OK, timeout=120, **more):
        """Run kvctl to its end; its exit status has to be the given one (None: any)."""
        done = subprocess.run([KVCTL, *args], env=self.env(), timeout=timeout,
                              input=text if text is not None else "",
                              encoding="utf-8", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **more)
        if status is not None:
            assert done.returncode == status, (
                f"kvctl {args[:3]}: exit {done.returncode}, want {status}: {done.stderr}")
        return done

    def spawn(self, command, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen(command, env=self.env(), **more)
        self.children.append(child)
        return child

    def spawn_hostile(self, verb, time_s=600.0, seed=1):
        """Start a misbehaving client and wait until it has done what it does."""
        child = self.spawn([HOSTILE, verb, str(time_s), str(seed)], stdout=subprocess.PIPE)
        assert select.select([child.stdout], [], [], 60)[0], f"hostile {verb} says nothing"
        line = child.stdout.readline()
        assert line in (b"submitted\n", b"connected\n"), f"hostile {verb} said {line!r}"
        return child

    def spawn_probe(self, what, time_s=600.0, interval_us=500):
        """Start an honest client that times NOPs ("nop") or statistics ("stats")."""
        return self.spawn([PROBE, what, str(time_s), str(interval_us), str(self.process.pid)],
                          stdout=PIPE)

    def probed(self, child):
        """Stop a probe. Its times in microseconds; see probe.c."""
        child.terminate()
        out = child.communicate(timeout=60)[0]
        equal(child.returncode, OK, "exit status of the probe")
        return json.loads(out)

    def spawn_generate(self, prompt, **options):
        """Start a client process; its answer is read by answer()."""
        out = tempfile.TemporaryFile()
        more = {k: options.pop(k) for k in ("user", "group", "extra_groups") if k in options}
        child = self.spawn([KVCTL, *generate_args(prompt, **options)], stdout=out,
                           stderr=subprocess.PIPE, **more)
        child.out = out
        return child

    def answer(self, child, timeout=180):
        error = child.communicate(timeout=timeout)[1].decode(errors="replace")
        assert child.returncode == 0, f"client: exit {child.returncode}: {error}"
        child.out.seek(0)
        return json.loads(child.out.read())

    def generate(self, prompt, timeout=180, **options):
        more = {k: options.pop(k) for k in ("user", "group", "extra_groups") if k in options}
        return json.loads(self.kvctl(*generate_args(prompt, **options), timeout=timeout,
                                     **more).stdout)

    def tokenize(self, text):
        return json.loads(self.kvctl("tokenize", "--json", "-", text=text).stdout)["tokens"]

    def flush(self):
        return self.kvctl("cache", "flush", "--yes", "--json", status=None)


def generate_args(prompt, raw=True, tokens=24, temperature=0, seed=1, logprobs=False,
                  system=None, stop=()):
    args = ["generate", "--json", "--max-tokens", str(tokens),
            "--temperature", str(temperature), "--seed", str(seed)]
    if raw:
        args.append("--raw")
    if logprobs:
        args.append("--logprobs")
    if system is not None:
        args += ["--system", system]
    for text in stop:
        args += ["--stop", text]
    return args + ["--", prompt]


WORDS = ("amber basket candle dragon ember forest garden harbor island jungle kitchen "
         "lantern meadow needle orchard pepper quarry river saddle timber umbrella valley "
         "walnut yellow zebra copper silver marble velvet cotton").split()


def kill(child):
    child.kill()
    child.wait()
    if child.stdout:
        child.stdout.close()


def prose(n_words, seed):
    """Plain text that differs from its first word on for different seeds."""
    rng = random.Random(seed)
    words = [rng.choice(WORDS) for _ in range(n_words)]
    for i in range(11, n_words, 12):
        words[i] += "."
    return f"Story {seed}: " + " ".join(words)


def shared_prompt():
    """The system prompt of the demo: about a thousand tokens."""
    with open(os.path.join(ROOT, "docs", "demo-system-prompt.txt"), encoding="utf-8") as f:
        return f.read()


def common_prefix(a, b):
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


class TestTimeout(BaseException):
    """Not an Exception: no test may swallow it."""


def on_alarm(_signal, _frame):
    raise TestTimeout()


def run(scope, timeout=300):
    """Run the tests of a script (pass globals()), print TAP, exit."""
    wanted = sys.argv[1:]
    tests = [(name, fn) for name, fn in scope.items()
             if name.startswith("test_") and callable(fn) and (not wanted or name in wanted)]
    unknown = set(wanted) - {name for name, _ in tests}
    if unknown:
        sys.exit(f"no such test: {' '.join(sorted(unknown))}")
    for path in (KVD, KVCTL):
        if not os.access(path, os.X_OK):
            print(f"1..0 # SKIP {path} is not built")
            sys.exit(0)
    if not os.access(MODEL, os.R_OK):
        print(f"1..0 # SKIP no model at {MODEL}; ./dev test fetches it")
        sys.exit(0)
    faulthandler.enable()
    signal.signal(signal.SIGALRM, on_alarm)
    print(f"1..{len(tests)}", flush=True)
    failed = 0
    for i, (name, fn) in enumerate(tests, 1):
        begin = time.monotonic()
        note = ""
        result = "ok"
        try:
            signal.alarm(getattr(fn, "timeout", timeout))
            fn()
        except Skip as why:
            note = f" # SKIP {why}"
        except (Exception, TestTimeout):  # pylint: disable=broad-except
            traceback.print_exc()
            result = "not ok"
            failed += 1
        finally:
            signal.alarm(0)
        print(f"{result} {i} - {name[5:]}{note}", flush=True)
        print(f"# {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(1 if failed else 0)


def limit(timeout):
    """Decorator: the time after which a test counts as hung."""
    def mark(fn):
        fn.timeout = timeout
        return fn
    return mark
