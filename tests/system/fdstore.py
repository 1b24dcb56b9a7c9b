# SPDX-License-Identifier: MIT
"""A service manager with an FD store, as far as kvd can tell, for daemons that come again.

Manager binds a notification socket and keeps what is pushed there, by the rules of systemd:
the same file is kept once, what is beyond the limit is closed without a word, a socket whose
peer has gone leaves by itself, stop() empties the store and restart() does not. What lies in
the store is handed to the next process in random order, with its names, beside the listening
socket. Kept is kvdtest's Daemon under such a manager:

    with fdstore.Kept({"cache.kv_cache_memory": "64M"}) as d:
        d.generate(...)
        d.restart(signal.SIGKILL)       # the old one dies, the new one serves
        d.manager.names()               # what lies in the store
"""
import array
import fcntl
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
import traceback

import kvdtest
from kvdtest import until

def huge_pages_for_files():
    """Whether the kernel has MADV_COLLAPSE, since Linux 6.1: packed weights are kept only
    there."""
    version = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2])
    return version >= (6, 1) and os.path.isdir("/sys/kernel/mm/transparent_hugepage")


# What a kvd leaves in the store, connections aside, when its model's file has rested.
STORED = ["kvimage", "kvpool"] + (["kvweights"] if huge_pages_for_files() else [])

LOW = 600  # copies for a child lie above this, out of the way of where it wants them


class Manager:
    """The notification socket and the store. `maximum`: FileDescriptorStoreMax=."""

    def __init__(self, folder, maximum=512, seed=1):
        self.path = os.path.join(folder, "notify")
        self.maximum = maximum
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.store = []      # [name, fd], in the order of arrival
        self.states = []     # lines like READY=1, in the order of arrival
        self.n_refused = 0
        self.n_told = 0      # messages about the store
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind(self.path)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                data, control, _, _ = self.socket.recvmsg(4096, 4096)
            except OSError:
                return
            if not data:  # shut down
                return
            fds = array.array("i")
            for level, kind, payload in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(payload[:len(payload) - len(payload) % fds.itemsize])
            try:
                with self.lock:
                    self._handle(data.decode(errors="replace").split("\n"), list(fds))
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()  # the next message has to be heard all the same

    def _handle(self, lines, fds):
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        name = fields.get("FDNAME", "stored")
        self.n_told += "FDSTORE" in fields or "FDSTOREREMOVE" in fields
        if fields.get("FDSTOREREMOVE") == "1":
            self._forget(lambda entry: entry[0] == name)
        elif fields.get("FDSTORE") == "1":
            for fd in fds:
                self._keep(name, fd)
            fds = []
        # Of BARRIER=1 the sender waits until its descriptor is closed here.
        for fd in fds:
            os.close(fd)
        self.states += [line for line in lines
                        if line.split("=")[0] in ("READY", "STOPPING", "RELOADING", "STATUS")]

    def _keep(self, name, fd):
        same = any(os.path.sameopenfile(fd, kept) for _, kept in self.store)
        if same or len(self.store) >= self.maximum:
            self.n_refused += not same
            os.close(fd)
            return
        os.set_inheritable(fd, False)
        self.store.append([name, fd])

    def _forget(self, wanted):
        for entry in [e for e in self.store if wanted(e)]:
            os.close(entry[1])
            self.store.remove(entry)

    def _sweep(self):
        """Sockets whose peer has gone."""
        poll = select.poll()
        for _, fd in self.store:
            poll.register(fd, 0)
        gone = {fd for fd, events in poll.poll(0) if events & (select.POLLHUP | select.POLLERR)}
        self._forget(lambda entry: entry[1] in gone)

    def names(self):
        with self.lock:
            self._sweep()
            return sorted(name for name, _ in self.store)

    def file(self, name):
        """A descriptor of the caller's for what is kept by a name."""
        with self.lock:
            return next(os.dup(fd) for kept, fd in self.store if kept == name)

    def said(self, line):
        with self.lock:
            return sum(1 for state in self.states if state == line)

    def empty(self):
        with self.lock:
            self._forget(lambda entry: True)

    def spawn(self, command, more=(), env=None, **options):
        """Start a process that gets the store and `more`, (name, fd) pairs."""
        with self.lock:
            self._sweep()
            entries = [*more, *self.store]
            self.rng.shuffle(entries)
            copies = [self._copy(fd, LOW) for _, fd in entries]
        # The numbers have to begin with 3, and LISTEN_PID has to be right: after exec only.
        # In two steps: of what it closes the shell keeps a copy, at any number above 9.
        moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(copies))
        closes = " ".join(f"{fd}<&-" for fd in copies)
        script = (f"exec {moves}; exec {closes}; " if moves else "") + \
            'export LISTEN_PID=$$; exec "$@"'
        env = {**os.environ, **(env or {}), "NOTIFY_SOCKET": self.path,
               "FDSTORE": str(self.maximum)}
        if entries:
            env.update(LISTEN_FDS=str(len(entries)),
                       LISTEN_FDNAMES=":".join(name for name, _ in entries))
        try:
            return subprocess.Popen(["bash", "-c", script, "bash", *command], env=env,
                                    pass_fds=copies, **options)
        finally:
            for fd in copies:
                os.close(fd)

    @staticmethod
    def _copy(fd, low):
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, low)

    def close(self):
        # The path may have gone. A thread that went on would read what takes its number next.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.socket.close()
        self.empty()


class Kept(kvdtest.Daemon):
    """A kvd under a manager that keeps descriptors and its listening socket."""

    def __init__(self, options=None, maximum=512, env=None, activated=True, start=True, **more):
        self.manager = None
        self.listening = None
        self.more_env = dict(env or {})
        super().__init__(options, start=False, **more)
        try:
            self.manager = Manager(self.folder, maximum)
            if activated:
                self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.listening.bind(self.socket)
                self.listening.listen(4096)
            if start:
                self.start()
        except BaseException:
            self.close()
            raise

    def launch(self):
        """Start the process and do not wait."""
        more = [("kvd", self.listening.fileno())] if self.listening else []
        with open(self.log_path, "ab") as log:
            self.process = self.manager.spawn(self.command(), more, self.more_env,
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self, timeout=120):
        before = self.manager.said("READY=1")
        self.launch()

        def serves():
            if self.process.poll() is not None:
                raise AssertionError(f"kvd ended with {self.process.returncode} at its start")
            return self.manager.said("READY=1") > before

        until(serves, timeout, "kvd says READY=1")

    def restart(self, sig=signal.SIGTERM, timeout=120):
        """As systemctl restart, or a crash: what lies in the store stays. Return: seconds
        from the signal until the new daemon serves."""
        begin = time.monotonic()
        status = self.stop(sig)
        kvdtest.equal(status, 0 if sig == signal.SIGTERM else -sig, "exit status of kvd")
        self.start(timeout)
        return time.monotonic() - begin

    def close(self):
        super().close()
        if self.manager:
            self.manager.close()
            self.manager = None
        if self.listening:
            self.listening.close()
            self.listening = None
