# SPDX-License-Identifier: MIT
"""A Debian that boots its own systemd inside a container, headless, in half a second.

systemd-nspawn runs the tree below an overlay, so the tree stays as it is and whatever a
test does is gone afterwards. The container reports its leading process and that it is up
through a notification socket; commands run in its namespaces by nsenter. What does not
hold in there: limits of control groups (on hosts with the old hierarchy), limits that the
host's root may not raise, clocks and devices. Needs root.
"""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Result:
    """Exit status and output of a command."""

    def __init__(self, status, out, err):
        self.status = status
        self.out = out
        self.err = err

    def __repr__(self):
        return f"status {self.status}\n{self.out}\n{self.err}"


class Container:
    """One booted tree. `binds` are (host, inside) pairs, read-only."""

    def __init__(self, tree, binds=(), options=()):
        self.work = tempfile.mkdtemp(prefix="kvd-nsboot.")
        self.nspawn = None
        self.leader = None
        path = os.path.join(self.work, "notify")
        command = ["systemd-nspawn", "--quiet", "-D", tree, "--boot", "--register=no",
                   "--keep-unit", "--console=pipe", "--notify-ready=yes",
                   "--volatile=overlay", "--kill-signal=SIGRTMIN+4", "--link-journal=no",
                   "--private-network", "--hostname=kvdtest", *options]
        command += [f"--bind-ro={host}:{inside}" for host, inside in binds]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, \
                    open(os.path.join(self.work, "boot.log"), "wb") as log:
                notify.bind(path)
                notify.settimeout(1)
                self.nspawn = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, env={**os.environ, "NOTIFY_SOCKET": path})
                self._wait_ready(notify)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, notify):
        end = time.monotonic() + 60
        ready = False
        while not (ready and self.leader):
            if self.nspawn.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the container did not boot: {self.boot_log()[-1500:]}")
            try:
                text = notify.recv(4096).decode(errors="replace")
            except socket.timeout:
                continue
            found = re.search(r"X_NSPAWN_LEADER_PID=(\d+)", text)
            if found:
                self.leader = int(found.group(1))
            ready = ready or "READY=1" in text.split("\n")

    def boot_log(self):
        with open(os.path.join(self.work, "boot.log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def command(self, args, user=None):
        """The arguments that run a program inside. `user`: setpriv's options."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C",
                 "env", "-C", "/", "-i", f"PATH={PATH}", "HOME=/", "LANG=C.UTF-8"]
        if user:
            args = ["setpriv", *user, *args]
        return enter + list(args)

    def run(self, *args, status=0, user=None, text="", timeout=90):
        """Run a program to its end; its exit status has to be the given one (None: any)."""
        done = subprocess.run(self.command(args, user), input=text, encoding="utf-8",
                              errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, check=False)
        if status is not None:
            assert done.returncode == status, (
                f"{args}: exit {done.returncode}, want {status}:\n{done.stdout}\n{done.stderr}")
        return Result(done.returncode, done.stdout, done.stderr)

    def sh(self, script, **more):
        return self.run("sh", "-c", script, **more)

    def spawn(self, *args, user=None, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(self.command(args, user), encoding="utf-8", **more)

    @staticmethod
    def kill(child):
        """SIGKILL for what spawn() started: nsenter has the program as its child."""
        end = time.monotonic() + 10
        inside = []
        while not inside and child.poll() is None and time.monotonic() < end:
            with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="ascii") as f:
                inside = [int(pid) for pid in f.read().split()]
        for pid in inside:
            os.kill(pid, signal.SIGKILL)
        child.communicate(timeout=30)
        assert inside, "the program had ended before it was killed"

    def write(self, path, text, mode=0o644):
        self.run("sh", "-c", f"mkdir -p $(dirname {path}) && cat >{path} && chmod {mode:o} {path}",
                 text=text)

    def host_pid(self, pid):
        """The host's number of a process inside."""
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/status", encoding="ascii", errors="replace") as f:
                    found = re.search(r"^NSpid:\t(\d+)\t(\d+)$", f.read(), re.M)
                if found and int(found.group(2)) == pid and os.readlink(
                        f"/proc/{name}/ns/pid") == os.readlink(f"/proc/{self.leader}/ns/pid"):
                    return int(name)
            except OSError:
                continue
        raise AssertionError(f"no process {pid} in the container")

    def stop(self):
        if self.nspawn and self.nspawn.poll() is None:
            # As asked; then its first process, with which the namespace goes; then by force.
            for pid, sig in ((self.nspawn.pid, signal.SIGTERM),
                             (self.leader or self.nspawn.pid, signal.SIGKILL),
                             (self.nspawn.pid, signal.SIGKILL)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sig)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.nspawn.wait(30)
                    break
        self.nspawn = None
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()
