#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each system call and each allocation fails, once and for ever, in kvd and in a client.

What is looked at: start, handshake, one request of each kind, stop. Nothing may crash,
hang or leak; what fails is named, in one entry of the log or in the client's message; what
still succeeds gives the right answer; after a fault that passes all is as before.

By default a sample: each kind of call and each place that allocates, then as many more as
the time allows (KVD_TEST_SECONDS each part), by a seed that is printed (KVD_FAULT_SEED).
KVD_FAULTS=all tries them all; KVD_FAULTS=WHAT one, as it is printed when it fails.
"""
import errno
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import kvdtest
from kvdtest import BUILD, KVD, SANITIZED, Skip, equal, limit, until
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
    "getdents64": "EIO ENOMEM",
    "lseek": "EINVAL",
    "mmap": "ENOMEM EPERM",
    "munmap": "ENOMEM",
    "mprotect": "ENOMEM",
    "mremap": "ENOMEM",
    "madvise": "EINVAL ENOMEM",
    "memfd_create": "EMFILE ENOMEM EPERM",
    "ftruncate": "ENOSPC EIO EPERM",
    "fallocate": "ENOSPC EOPNOTSUPP",
    "fcntl": "EPERM EMFILE",
    "flock": "ENOLCK EINTR",
    "fchmod": "EPERM EIO",
    "chmod": "EPERM EROFS",
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
            if os.path.lexists(self.path(name)):
                os.unlink(self.path(name))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
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
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

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
        return self.read_report()

    def fds_at_rest(self):
        if self.n_fds is None:
            self.call(steps=["none"])
            time.sleep(0.3)
            self.n_fds = self.fds()
        return self.n_fds

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


def choose(groups, seconds):
    """One of each group, then the others in a random order, while there is time."""
    if WHICH and WHICH != "all":
        if any(WHICH in group for group in groups):
            yield WHICH
        return
    rng = random.Random(SEED)
    first, rest = [], []
    for group in groups:
        first.append(group[0])
        rest += group[1:]
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


def fail_calls(backend):
    with Bench(backend) as bench:
        need_failcall(bench)
        groups = call_groups(bench.learn([FAILCALL, bench.report, "census"]))
        results, problems = [], []
        for what in choose(groups, seconds()):
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
            os.unlink(bench.report)
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
    if result == "served" and int(n_live):
        raise Fault(f"{n_live} allocations are left, where {where} failed")
    results.append("not reached" if n_failed == "0" else result)


@limit(3600)
def test_each_allocation_of_the_daemon():
    need_failalloc()
    with Bench("epoll") as bench:
        report = bench.learn(env=alloc_env(bench, "0"))
        equal(report[0].split()[2], "0", "allocations left without a fault")
        groups = alloc_groups(report)
        results, problems = [], []
        for what in choose(groups, 2 * seconds()):
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


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
