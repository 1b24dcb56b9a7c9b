#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each system call and each allocation fails, once and for ever, in kvd, a client and kvctl.

What is looked at: start, also a warm one with pool and image handed over, handshake, one
request of each kind, stop; and the verbs of kvctl. Nothing may crash, hang or leak; what fails is named, in one entry of the log or in the client's message; what
still succeeds gives the right answer; after a fault that passes all is as before.

By default a sample: each kind of call and each place that allocates, then as many more as
the time allows (KVD_TEST_SECONDS each part), by a seed that is printed (KVD_FAULT_SEED).
KVD_FAULTS=all tries them all; KVD_FAULTS=WHAT one, as it is printed when it fails.
"""
import contextlib
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import fdstore
import kvdtest
from kvdtest import BUILD, KVD, KVCTL, SANITIZED, Skip, equal, limit, until
import tinygguf

FAILCALL = os.path.join(BUILD, "tests", "system", "failcall")
FAILALLOC = os.path.join(BUILD, "tests", "system", "failalloc.so")
CALLER = os.path.join(BUILD, "tests", "system", "caller")
WHICH = os.environ.get("KVD_FAULTS", "")
# In CI always the same, so that a change is not blamed for what it did not bring.
SEED = int(os.environ.get("KVD_FAULT_SEED") or
           (1 if os.environ.get("CI") else random.SystemRandom().randrange(1 << 32)))
# A client whose every word is lost gives up after five seconds, a few times in a row.
PATIENCE = 90
TROUBLE = re.compile(r"^kvd: (error|warning|critical|alert|emergency): ", re.M)
REPORT = re.compile(r"AddressSanitizer|LeakSanitizer|runtime error:|Assertion|malloc\(\)|free\(\)|"
                    r"stack smashing|futex facility")

# What each call may give, of what the kernel's manual says; those that are left alone stand
# below. The first is always tried.
ERRORS = {
    "read@file": "EIO EINTR",
    "write@file": "ENOSPC EIO EINTR",
    "read@eventfd": "EINTR EAGAIN",
    "write@eventfd": "EINTR",
    "write@pipe": "EINTR",
    "read@pipe": "EINTR",
    "read@signalfd": "EINTR EAGAIN",
    "pwrite64@file": "ENOSPC",
    "pread64@file": "EIO",
    "preadv2@eventfd": "EAGAIN EOPNOTSUPP EINTR",
    "openat": "EMFILE EACCES ENOMEM EIO",
    "open": "EMFILE EACCES ENOMEM",
    "newfstatat": "EIO ENOMEM EACCES",
    "fstat": "EIO ENOMEM",
    "access": "EACCES EIO",
    "getdents64": "EIO ENOMEM",
    "lseek": "EINVAL",
    "mmap": "ENOMEM EPERM",
    "munmap": "ENOMEM",
    "mprotect": "ENOMEM",
    "mremap": "ENOMEM",
    "madvise": "EINVAL ENOMEM",
    "memfd_create": "EMFILE ENOMEM EPERM",
    "ftruncate": "ENOSPC EIO EPERM",
    "pread64": "EIO EINTR",
    "pwrite64": "ENOSPC EIO EINTR",
    "fallocate": "ENOSPC EOPNOTSUPP",
    "fcntl": "EPERM EMFILE",
    "flock": "ENOLCK EINTR",
    "fchmod": "EPERM EIO",
    "unlink": "EACCES EROFS",
    "socket": "EMFILE EACCES ENOBUFS",
    "bind": "EADDRINUSE EACCES ENOSPC",
    "listen": "EADDRINUSE",
    "connect": "EAGAIN EACCES ENOMEM",
    "accept4": "EMFILE ENOMEM ECONNABORTED EINTR EPERM",
    "sendmsg": "EPIPE ENOBUFS EAGAIN EINTR ETOOMANYREFS",
    "recvmsg": "ENOMEM ECONNRESET EAGAIN EINTR",
    "getsockopt": "ENOBUFS",
    "setsockopt": "EPERM ENOPROTOOPT",
    "poll": "ENOMEM EINTR",
    "ppoll": "ENOMEM EINTR",
    "epoll_create1": "EMFILE ENOMEM",
    "epoll_ctl": "ENOSPC ENOMEM",
    "epoll_wait": "EINTR",
    "epoll_pwait2": "EPERM ENOSYS EINTR",
    "eventfd2": "EMFILE ENOMEM",
    "signalfd4": "EMFILE ENOMEM",
    "timerfd_create": "EMFILE",
    "timerfd_settime": "EINVAL",
    "pipe2": "EMFILE ENFILE",
    "io_uring_setup": "EPERM ENOMEM ENOSYS",
    "io_uring_register": "EPERM EINVAL ENOMEM",
    "io_uring_enter": "EINTR EAGAIN EBUSY",
    "clone": "EAGAIN",
    "clone3": "EAGAIN EPERM ENOMEM",
    "prlimit64": "EPERM",
    "sched_getaffinity": "EPERM",
    "sched_setaffinity": "EPERM EINVAL",
    "getrandom": "ENOSYS",
    "close": "EIO EINTR",
}
LEFT_ALONE = {
    "futex": "the C library aborts on what its manual does not list, and loses wake-ups",
    "brk": "the kernel's own never gives an error, but the old end of the heap",
    "rt_sigaction": "fails only for wrong arguments", "rt_sigprocmask": "likewise",
    "sigaltstack": "likewise", "getpid": "cannot fail", "gettid": "cannot fail",
    "getuid": "cannot fail", "geteuid": "cannot fail", "sched_yield": "cannot fail",
    "uname": "cannot fail", "sysinfo": "cannot fail", "exit_group": "cannot fail",
    "prctl": "names and flags only, and where counting begins",
    "clock_nanosleep": "only of tests", "kill": "only of the probe of the sandbox",
    "wait4": "likewise", "ioctl": "the C library asks whether a file is a terminal",
}
# Calls of the sanitizers' own runtime, which gives up when one fails.
OF_SANITIZERS = {"mmap@anon", "munmap@any", "mprotect@any", "madvise@any", "mremap@any", "open@any",
                 "clone@any", "sched_getaffinity@any"}
# For ever these would say "try again" to those who rightly do.
PASSING = {"EINTR", "EAGAIN", "EBUSY", "ECONNABORTED"}


class Fault(AssertionError):
    """A trial that went wrong."""


class Bench:
    """A folder with a model, and what a run without a fault looks like."""

    def __init__(self, backend):
        self.backend = backend
        self.temporary = tempfile.TemporaryDirectory(prefix="kvd-faults.")
        self.folder = self.temporary.name
        self.report = self.path("report")
        self.log_path = self.path("log")
        os.mkdir(self.path("kvd.conf.d"))
        for name in ("kvd.conf", "kvd.conf.d/50-one.conf"):
            with open(self.path(name), "w", encoding="ascii") as f:
                f.write("[cache]\nkv_cache_memory = 2M\n")
        tinygguf.write_model(self.path("tiny.gguf"), tokenizer=True, n_heads=2, n_kv_heads=1,
                             n_layers=1)
        self.process = None
        self.baseline = None
        self.n_fds = None
        self.spawn = subprocess.Popen

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.temporary.cleanup()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()
        self.process = None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def start(self, prefix=(), env=None):
        """Return: the exit status if kvd did not serve, else None."""
        for name in ("report", "kvd.sock", "kvd.sock.lock"):
            self.forget(name)
        with open(self.log_path, "wb") as log:
            self.process = self.spawn(
                [*prefix, KVD, "--config", self.path("kvd.conf"), "-o",
                 f"daemon.socket={self.path('kvd.sock')}", "-o",
                 f"model.path={self.path('tiny.gguf')}", "-o", "cpu.threads=2"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "KVD_IO_BACKEND": self.backend, **(env or {})})
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return self.process.returncode
            if self.serves():
                return None
            time.sleep(0.003)
        raise Fault("it neither serves nor ends")

    def serves(self):
        if re.search(r"^socket: |^kvd: notice: serving ", self.log(), re.M):
            return True
        # Its output may be what fails.
        if not os.path.exists(self.path("kvd.sock")):
            return False
        time.sleep(0.1)
        return self.process.poll() is None

    def call(self, prefix=(), env=None, steps=()):
        """Run the client. Return: (exit status, lines)."""
        try:
            done = subprocess.run([*prefix, CALLER, *steps], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=PATIENCE, check=False,
                                  env={**os.environ, "KVD_SOCKET": self.path("kvd.sock"),
                                       **(env or {})})
        except subprocess.TimeoutExpired as late:
            raise Fault(f"the client hangs after {(late.output or b'').decode()[-300:]!r}") \
                from None
        return done.returncode, done.stdout.decode(errors="replace").splitlines()

    def check_call(self, status, lines, spotless):
        """What a client printed: right answers, or errors with names."""
        text = "\n".join(lines)
        if status not in (0, 1) or REPORT.search(text):
            raise Fault(f"the client ended with {status}: {text[-600:]}")
        bad = [line for line in lines if line.split(" ")[1:2] != ["ok"]]
        wrong = [line for line in lines if line not in bad and line not in self.baseline]
        if wrong:
            raise Fault(f"wrong answers: {wrong}")
        if any(not re.match(r"[a-z-]+ [A-Z][A-Z0-9_]+: \S", line) for line in bad):
            raise Fault(f"an error without a name: {bad}")
        if spotless and (status or lines != self.baseline):
            raise Fault(f"after the fault had passed: {bad or lines}")

    def stop(self):
        """SIGTERM. Return: exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Fault("it does not stop") from None

    def fds(self):
        """But for that of the thread that is started where a kernel cannot refuse descriptors,
        as a fault may say that it cannot."""
        proc = f"/proc/{self.process.pid}"
        names = []
        for task in os.listdir(f"{proc}/task"):
            with contextlib.suppress(OSError), open(f"{proc}/task/{task}/comm", encoding="ascii") as f:
                names.append(f.read().strip())
        return len(os.listdir(f"{proc}/fd")) - ("kvd-closer" in names)

    def learn(self, prefix=(), env=None):
        """A run without a fault. Return: the lines of the report."""
        equal(self.start(prefix, env), None, "exit status without a fault")
        status, lines = self.call()
        equal((status, [line for line in lines if " ok " not in line]), (0, []), "caller")
        self.baseline = lines
        equal(self.call(), (0, lines), "the second run of the caller")
        until(lambda: self.fds() == self.fds_at_rest(), PATIENCE, "descriptors at rest")
        equal(self.stop(), 0, "exit status")
        equal(TROUBLE.findall(self.log()), [], "entries of trouble")
        return self.read_report() if prefix or env else []

    def fds_at_rest(self):
        if self.n_fds is None:
            self.call(steps=["none"])
            time.sleep(0.3)
            self.n_fds = self.fds()
        return self.n_fds

    def forget(self, name="report"):
        """Remove a file of the last run, if it is there."""
        if os.path.lexists(self.path(name)):
            os.unlink(self.path(name))

    def read_report(self):
        until(lambda: os.path.exists(self.report), 10, "the report of the faults")
        with open(self.report, encoding="ascii") as f:
            return f.read().splitlines()

    def trial(self, prefix, env, once, keeps_fds=True):
        """One run of the daemon with a fault. Return: what became of it."""
        status = self.start(prefix, env)
        if status is None:
            result = "served"
            self.call_often(once)
            if self.process.poll() is not None:
                status = self.process.returncode
                result = "ended"
            else:
                if once and keeps_fds:
                    until(lambda: self.fds() <= self.n_fds, PATIENCE,
                          lambda: f"{self.fds()} descriptors, {self.n_fds} without a fault")
                status = self.stop()
                if status not in (0,) if once else status not in (0, 1):
                    raise Fault(f"exit status {status} after SIGTERM")
        else:
            result = "refused"
        # EX_CONFIG: kvd may not read its configuration, which another try does not change.
        if status not in (0, 1) and not (status == 78 and "Permission denied" in self.log()):
            raise Fault(f"exit status {status}")
        self.check_log(result, once)
        return result

    def call_often(self, once):
        """Clients until the fault must have passed: it may be any of the first that sees it,
        and all see it that lasts."""
        for i in range(4 if once else 1):
            status, lines = self.call()
            self.check_call(status, lines, spotless=i == 3)
            if self.process.poll() is not None or (i > 0 and status == 0):
                return

    def check_log(self, result, once):
        text = self.log()
        if REPORT.search(text):
            raise Fault("a report in the log")
        n = len(TROUBLE.findall(text))
        if result != "served" and not 1 <= n <= (1 if once else 2):
            raise Fault(f"it {result} with {n} entries of trouble")
        if n > (1 if once else 4):
            raise Fault(f"{n} entries about one fault")

    def failed(self, what, why):
        print(f"# {what}: {why}", flush=True)
        for line in self.log().splitlines()[-8:]:
            print(f"#     {line[:300]}")


class WarmBench(Bench):
    """The same under a service manager, in whose store a former daemon left its cache."""

    def __init__(self, backend):
        super().__init__(backend)
        # of a file that was just written no weights are kept
        time.sleep(4)
        self.primed = True
        self.hurried = False
        self.manager = fdstore.Manager(self.folder)
        self.spawn = lambda command, env, **more: self.manager.spawn(command, env=env, **more)

    def __exit__(self, *_):
        self.kill()
        self.manager.close()
        self.temporary.cleanup()

    def start(self, prefix=(), env=None):
        self.hurried = False
        status = super().start(prefix, env)
        return 1 if self.hurried and status == -signal.SIGTERM else status

    def serves(self):
        """A service that cannot start says so, and pauses before it ends."""
        if not re.search(r"^kvd: error: ", self.log(), re.M) or "notice: serving " in self.log():
            return super().serves()
        time.sleep(0.02)
        if not self.hurried:
            self.process.send_signal(signal.SIGTERM)
        self.hurried = True
        return False

    def learn(self, prefix=(), env=None):
        """Return: the report of a start with an empty store, and of a warm one."""
        self.manager.empty()
        cold = super().learn(prefix, env)
        warm = super().learn(prefix, env)
        assert ": warm start" in self.log(), "the start was not warm"
        return cold, warm

    def trial(self, prefix, env, once, keeps_fds=True):
        """The same, and what became of the cache."""
        if not self.primed:
            self.manager.empty()
            equal(self.start(), None, "exit status of a first daemon")
            self.check_call(*self.call(), spotless=True)
            equal((self.stop(), self.manager.names()), (0, fdstore.STORED),
                  "what it leaves")
        self.primed = False
        result = super().trial(prefix, env, once, keeps_fds)
        if result != "served":
            return result
        if ": warm start" in self.log():
            self.primed = self.manager.names() == fdstore.STORED
            return "warm"
        # The word itself may be what was lost.
        if not re.search("the cache (of|will)", self.log()) and "write@file" not in str(prefix):
            raise Fault("the cache is lost without a word")
        return "cold"


class ColdBench(WarmBench):
    """The first start under a service manager, which makes all that is kept."""

    def trial(self, prefix, env, once, keeps_fds=True):
        self.manager.empty()
        return Bench.trial(self, prefix, env, once, keeps_fds)


# Trials of a client that have gone wrong once; they come first of their group.
FOUND = ("sendmsg@any:EPIPE:3+",)


def choose(groups, seconds):
    """One of each group, then the others in a random order, while there is time."""
    if WHICH and WHICH != "all":
        if any(WHICH in group for group in groups):
            yield WHICH
        return
    rng = random.Random(SEED)
    first, rest = [], []
    for group in groups:
        first.append(next((case for case in group if case in FOUND), group[0]))
        rest += [case for case in group if case != first[-1]]
    rng.shuffle(first)
    rng.shuffle(rest)
    end = time.monotonic() + seconds
    for i, case in enumerate(first + rest):
        if WHICH != "all" and (time.monotonic() > end and i >= len(first) or
                               time.monotonic() > end + 3 * seconds):
            return
        yield case


def conclude(results, n_cases, problems):
    counts = {r: results.count(r) for r in sorted(set(results))}
    print(f"# {len(results)} of {n_cases} trials, seed {SEED}: {counts}", flush=True)
    assert not problems, f"{len(problems)} trials went wrong: {problems[:12]}"


def seconds():
    return kvdtest.seconds(30 if SANITIZED else 25)


def call_groups(census):
    """Trials of each kind of call, as "CALL@KIND:ERROR:N[+]"."""
    groups = []
    for line in census:
        kind, count = line.split()
        call = kind.split("@")[0]
        if SANITIZED and kind in OF_SANITIZERS:
            continue
        names = ERRORS.get(kind, ERRORS.get(call))
        if names is None:
            # Without an entry: of a kind of descriptor for which it cannot fail.
            assert call in LEFT_ALONE or call in ("read", "write"), f"no errors known for {kind}"
            continue
        for name in names.split():
            n = min(int(count), 40)
            modes = [f"{kind}:{name}:{i}" for i in range(1, n + 1)]
            if name not in PASSING:
                modes += [m + "+" for m in modes]
            random.Random(f"{SEED} {kind} {name}").shuffle(modes)
            groups.append(modes)
    return groups


def as_prefix(bench, what):
    """failcall's arguments for a trial's name."""
    kind, name, nth = what.split(":")
    return [FAILCALL, bench.report, f"{kind}:{getattr(errno, name)}:{nth}"]


def need_failcall(bench):
    probe = subprocess.run([FAILCALL, bench.path("probe"), "census", "/bin/true"], check=False,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if probe.returncode == 125:
        raise Skip(f"no notifications of seccomp here: {probe.stdout.decode().strip()}")


def fail_calls_of(bench, census, time_s):
    """Trials of the daemon with each of these calls."""
    groups = call_groups(census)
    results, problems = [], []
    for what in choose(groups, time_s):
        try:
            result = bench.trial(as_prefix(bench, what), None, "+" not in what,
                                 not what.startswith("close"))
            if bench.read_report()[0].split()[1] == "0":
                result = "not reached"
            results.append(result)
        except AssertionError as why:
            bench.failed(what, why)
            results.append("wrong")
            problems.append(what)
        finally:
            bench.kill()
    conclude(results, sum(map(len, groups)), problems)


def fail_calls(backend):
    with Bench(backend) as bench:
        need_failcall(bench)
        fail_calls_of(bench, bench.learn([FAILCALL, bench.report, "census"]), seconds())


@limit(3600)
def test_each_call_of_the_daemon_with_epoll():
    fail_calls("epoll")


@limit(3600)
def test_each_call_of_the_daemon_with_io_uring():
    fail_calls("io_uring")


@limit(3600)
def test_each_call_of_a_client():
    """The client gets an error with a name; the daemon and the next client notice nothing."""
    with Bench("epoll") as bench:
        need_failcall(bench)
        bench.learn([FAILCALL, bench.report, "census"])
        bench.start()
        bench.call([FAILCALL, bench.report, "census"])
        groups = call_groups(bench.read_report())
        results, problems = [], []
        for what in choose(groups, seconds()):
            bench.forget()
            try:
                status, lines = bench.call(as_prefix(bench, what))
                bench.check_call(status, lines, spotless=False)
                bench.check_call(*bench.call(), spotless=True)
                until(lambda: bench.fds() <= bench.n_fds, PATIENCE, "descriptors of the daemon")
                n = bench.read_report()[0].split()[1]
                results.append("not reached" if n == "0" else "failed" if status else "ok")
            except AssertionError as why:
                bench.failed(what, why)
                results.append("wrong")
                problems.append(what)
                bench.kill()
                bench.start()
        equal(bench.stop(), 0, "exit status of the daemon")
        conclude(results, sum(map(len, groups)), problems)


def alloc_env(bench, what):
    return {"LD_PRELOAD": FAILALLOC, "KVD_FAILALLOC": what,
            "KVD_FAILALLOC_REPORT": bench.report}


def alloc_groups(report):
    total = int(report[0].split()[0])
    sampled = sorted({int(line) for line in report[1:]})
    others = sorted(set(range(1, total + 1)) - set(sampled))
    groups = [[f"{n}", f"{n}+"] if n % 2 else [f"{n}+", f"{n}"] for n in sampled]
    return groups + ([[w for n in others for w in (f"{n}", f"{n}+")]] if others else [])


def need_failalloc():
    if SANITIZED:
        raise Skip("the sanitizer has an allocator of its own")


def note_alloc(bench, results, result, problems, what):
    """The shim's own report: nothing that the program allocated is left."""
    _, n_failed, n_live, where = bench.read_report()[0].split()
    if result in ("served", "warm", "cold") and int(n_live):
        raise Fault(f"{n_live} allocations are left, where {where} failed")
    results.append("not reached" if n_failed == "0" else result)


def fail_allocations(bench, report, time_s):
    """Trials of the daemon with each allocation that is reported."""
    equal(report[0].split()[2], "0", "allocations left without a fault")
    groups = alloc_groups(report)
    results, problems = [], []
    for what in choose(groups, time_s):
        try:
            result = bench.trial((), alloc_env(bench, what), "+" not in what)
            note_alloc(bench, results, result, problems, what)
        except AssertionError as why:
            bench.kill()
            where = " ".join(bench.read_report()) if os.path.exists(bench.report) else "?"
            bench.failed(f"allocation {what} ({where})", why)
            results.append("wrong")
            problems.append(what)
        finally:
            bench.kill()
    conclude(results, sum(map(len, groups)), problems)


@limit(3600)
def test_each_allocation_of_the_daemon():
    need_failalloc()
    with Bench("epoll") as bench:
        fail_allocations(bench, bench.learn(env=alloc_env(bench, "0")), 2 * seconds())


@limit(3600)
def test_each_allocation_of_a_client():
    need_failalloc()
    with Bench("epoll") as bench:
        bench.learn(env=alloc_env(bench, "0"))
        bench.start()
        bench.call(env=alloc_env(bench, "0"))
        groups = alloc_groups(bench.read_report())
        results, problems = [], []
        for what in choose(groups, seconds()):
            try:
                status, lines = bench.call(env=alloc_env(bench, what))
                bench.check_call(status, lines, spotless=False)
                note_alloc(bench, results, "served", problems, what)
                bench.check_call(*bench.call(steps=["rest"]), spotless=False)
            except AssertionError as why:
                bench.failed(f"allocation {what} of the client", why)
                results.append("wrong")
                problems.append(what)
        bench.check_call(*bench.call(), spotless=True)
        equal(bench.stop(), 0, "exit status of the daemon")
        conclude(results, sum(map(len, groups)), problems)


def few_seconds():
    """For what shares most of its code with the parts above."""
    return kvdtest.seconds(5 if SANITIZED else 1)


def more_often(census, than):
    often = dict(line.split() for line in than)
    return [line for line in census
            if int(line.split()[1]) > int(often.get(line.split()[0], 0))]


@limit(3600)
def test_each_call_of_a_warm_start():
    """Those that a start makes only, or more often, when a cache is handed to it."""
    with WarmBench("epoll") as bench:
        need_failcall(bench)
        cold, warm = bench.learn([FAILCALL, bench.report, "census"])
        fail_calls_of(bench, more_often(warm, cold), few_seconds())


@limit(3600)
def test_each_call_of_a_first_start():
    """Those that a start makes only, or more often, when there is nothing yet to take back."""
    with ColdBench("epoll") as bench:
        need_failcall(bench)
        cold, warm = bench.learn([FAILCALL, bench.report, "census"])
        fail_calls_of(bench, more_often(cold, warm), few_seconds())


@limit(3600)
def test_each_allocation_of_a_warm_start():
    need_failalloc()
    with WarmBench("epoll") as bench:
        _, report = bench.learn(env=alloc_env(bench, "0"))
        # Only the first of each place: a start asks for much, and mostly as any start does.
        fail_allocations(bench, ["0 0 " + report[0].split()[2], *report[1:]], few_seconds())


# What its answer is, where not only its form is told in advance.
EXACT = {"generate", "tokenize", "score"}
VERBS = (
    ("status",), ("stats", "--json"), ("clients", "--json"), ("top", "-b", "-n", "1", "--json"),
    ("doctor", "--json"), ("cache", "ls", "--json"), ("cache", "quota", "--json"),
    ("cache", "flush", "--yes", "--json"), ("generate", "--raw", "--max-tokens", "6", "abc abc"),
    ("tokenize", "abc abcabc"), ("score", "abc abcabc"), ("latency", "--count", "3", "--json"),
)


def run_verb(bench, verb, prefix=(), env=None):
    """Return: exit status, output, messages. The output is a file, so that writing fails."""
    with open(bench.path("out"), "w+", encoding="utf-8", errors="replace") as out:
        try:
            done = subprocess.run([*prefix, KVCTL, "-s", bench.path("kvd.sock"), *verb],
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                                  timeout=PATIENCE, check=False,
                                  env={**os.environ, "LD_PRELOAD": FAILALLOC,
                                       "KVD_FAILALLOC_BEGIN": "1", **(env or {})})
        except subprocess.TimeoutExpired:
            raise Fault("kvctl hangs") from None
        out.seek(0)
        return done.returncode, out.read(), done.stderr.decode(errors="replace")


def form(value):
    """Of a JSON value: what stays when numbers and texts change."""
    if isinstance(value, dict):
        return {key: form(v) for key, v in value.items()}
    return "list" if isinstance(value, list) else "value"


def result_of(verb, out):
    try:
        return form(json.loads(out)) if "--json" in verb else \
            out if verb[0] in EXACT else len(out.splitlines())
    except ValueError:
        raise Fault(f"no JSON: {out[-300:]!r}") from None


def check_verb(verb, want, status, out, err):
    """The right output, or a message and an exit code that stands in the manual."""
    if status not in (0, 1, 3, 4, 5, 6, 7) or REPORT.search(err):
        raise Fault(f"exit status {status}: {err[-300:]!r}")
    if status == 0 and result_of(verb, out) != want:
        raise Fault(f"wrong output: {out[-300:]!r} {err[-300:]!r}")
    if status and not re.search(r"^kvctl: \S", err, re.M):
        # What doctor could not do it says in its output.
        if verb[0] != "doctor" or "fail" not in out:
            raise Fault(f"exit status {status} without a message: {err[-300:]!r}")


def fail_verbs(bench, groups_of, trial):
    """Each verb with each of its faults; the daemon notices nothing."""
    bench.learn()
    bench.start()
    groups, want = [], {}
    for verb in VERBS:
        status, out, err = run_verb(bench, verb)
        equal((status, err), (0, ""), " ".join(verb))
        want[verb] = result_of(verb, out)
        name = " ".join(verb[:2])
        groups += [[f"{name}/{what}" for what in group] for group in groups_of(verb)]
    by_name = {" ".join(verb[:2]): verb for verb in VERBS}
    results, problems = [], []
    for case in choose(groups, few_seconds()):
        name, what = case.split("/")
        verb = by_name[name]
        bench.forget()
        try:
            status, out, err = trial(verb, what)
            check_verb(verb, want[verb], status, out, err)
            n = bench.read_report()[0].split()[1]
            results.append("not reached" if n == "0" else "failed" if status else "ok")
        except AssertionError as why:
            bench.failed(case, why)
            results.append("wrong")
            problems.append(case)
    until(lambda: bench.fds() <= bench.n_fds, PATIENCE, "descriptors of the daemon")
    bench.check_call(*bench.call(), spotless=True)
    equal(bench.stop(), 0, "exit status of the daemon")
    conclude(results, sum(map(len, groups)), problems)


@limit(3600)
def test_each_call_of_kvctl():
    need_failalloc()
    with Bench("epoll") as bench:
        need_failcall(bench)

        def groups_of(verb):
            run_verb(bench, verb, [FAILCALL, bench.report, "census"])
            groups = call_groups(bench.read_report())
            bench.forget()
            return groups

        fail_verbs(bench, groups_of,
                   lambda verb, what: run_verb(bench, verb, as_prefix(bench, what)))


@limit(3600)
def test_each_allocation_of_kvctl():
    need_failalloc()
    with Bench("epoll") as bench:
        def groups_of(verb):
            run_verb(bench, verb, env=alloc_env(bench, "0"))
            return alloc_groups(bench.read_report())

        fail_verbs(bench, groups_of,
                   lambda verb, what: run_verb(bench, verb, env=alloc_env(bench, what)))


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
