#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients that break the contract: only they suffer.

Field cases 31, 35 and 36; the accounting is checked after each by the harness. The container
suite plays them all against the installed service. What is known of attacks on such daemons,
and the test of each:

  truncating or growing a ring's file        seals; suite unit: region
  huge pages in spite of seals               seals (no arena is of huge pages)
  punching holes, MADV_REMOVE                punch, under load; seals: not D2C
  sealing a file that the daemon has mapped  seals
  opening it again for writing                seals
  userfaultfd on its own mapping             uffd
  a descriptor of a file system of its own   fds: no descriptor is ever taken
  locking memory                             locks: its own process's limit, nothing of kvd's
  keeping the map after it left              keep
  descriptors by the hundred                 fds, packets
  one whose last close waits (SO_LINGER)     linger, also on kernels that pass it on
  never receiving the daemon's own           inflight
  never reading socket or completions        deaf, noread; test_edges: costs nothing
  connecting by the hundred                  connects; test_users: connection limit
  taking over a process id                   test_users: rights follow the user
  an entry that changes while it is read     flip, scribble
  positions and numbers that cannot be       positions, scribble; suite unit: rings
  keeping the daemon awake                   bells; test_service: idle clients
"""
import ctypes
import os
import resource
import sys
import time

import kvdtest
from kvdtest import HOSTILE, SANITIZED, Daemon, Skip, equal, limit, until
from test_death import POOL, Neighbour, back_at, base_of

TIME = kvdtest.seconds(10 if SANITIZED else 8)
LEFT_OUT_US = 500000
PR_CAPBSET_DROP, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 24, 21, 24
OLD_KERNEL = os.path.join(kvdtest.BUILD, "tests", "system", "oldkernel.so")


def honest(d, neighbour, time_s):
    """Answers a second and times of NOPs that honest clients get for a while."""
    probe = d.spawn_probe("nop")
    begin, before = time.monotonic(), neighbour.count
    time.sleep(time_s)
    rate = (neighbour.count - before) / (time.monotonic() - begin)
    return rate, d.probed(probe)


def report(what, rate, got):
    print(f"# {what}: {rate:.2f} answers a second; NOP median {got['p50_us']:.0f} us, "
          f"p99 {got['p99_us']:.0f} us; without waiting for a CPU p99 "
          f"{got['served_p99_us']:.0f} us, worst {got['served_max_us']:.0f} us")


def play(verb, share=1.0, daemon=Daemon, **who):
    """Two clients that misbehave beside an honest one, for a share of the usual time."""
    time_s = share * TIME
    if who and os.getuid() != 0:
        raise Skip("needs root, to become another user")
    with daemon(POOL) as d:
        os.chmod(d.socket, 0o666 if who else 0o660)
        neighbour = Neighbour(d)
        base = base_of(d)
        with neighbour:
            alone = honest(d, neighbour, time_s / 2)
            children = [d.spawn([HOSTILE, verb, str(time_s), str(seed)], stdout=kvdtest.PIPE,
                                **who)
                        for seed in (1, 2)]
            time.sleep(time_s / 8)
            beside = honest(d, neighbour, time_s / 2)
            for child in children:
                out = child.communicate(timeout=time_s + 120)[0].decode()
                print(f"# {out.strip().splitlines()[-1] if out.strip() else 'no output'}")
                equal(child.returncode, 0, "exit status of the hostile client")
            assert d.alive(), "the daemon died"
            before = neighbour.count
            until(lambda: neighbour.count > before or neighbour.problem, 60,
                  "the neighbour is answered")
        report("alone", *alone)
        report(f"beside {verb}", *beside)
        # Of the loop everybody gets a turn; what the attackers take of the CPUs is theirs
        # by the kernel's leave and not counted. Figures are printed; a machine may be busy
        # with other things, so only being left out for good is a failure.
        if os.path.exists("/proc/self/schedstat"):
            assert SANITIZED or beside[1]["served_p99_us"] < LEFT_OUT_US, \
                f"NOPs wait: {beside[1]}"
        back_at(d, base)


@limit(600)
def test_never_reads():
    play("noread")


@limit(600)
def test_scribbles_over_its_ring():
    play("scribble")


@limit(600)
def test_sends_random_packets():
    play("packets")


@limit(600)
def test_submits_random_entries():
    play("sqes")


@limit(600)
def test_cannot_change_what_is_sealed():
    play("seals", 0.2)


@limit(600)
def test_punches_holes():
    play("punch", 0.2)


@limit(600)
def test_keeps_its_maps():
    play("keep", 0.2)


@limit(600)
def test_stalls_its_own_pages():
    play("uffd", 0.2)


@limit(600)
def test_locks_memory():
    play("locks", 0.2, user=61001, group=61001, extra_groups=[])


@limit(600)
def test_sends_descriptors():
    play("fds", 0.2)


class OldKernel(Daemon):
    """Cannot refuse descriptors, as before Linux 6.16."""

    def start(self, timeout=120):
        self.popen = {"env": {**os.environ, "LD_PRELOAD": OLD_KERNEL}}
        super().start(timeout)


@limit(600)
def test_sends_descriptors_to_an_old_kernel():
    if SANITIZED:
        raise Skip("a sanitizer wants to be the first library")
    play("fds", 0.2, OldKernel, user=61001, group=61001, extra_groups=[])


@limit(600)
def test_sends_what_lingers():
    """Ten seconds for each, if it is closed where others wait. Until a thread has closed what came
    with it, a socket is charged to its user."""
    if os.getuid() != 0:
        raise Skip("needs root, to become another user")
    with (Daemon if SANITIZED else OldKernel)(POOL) as d:
        os.chmod(d.socket, 0o666)
        base = base_of(d)
        child = d.spawn([HOSTILE, "linger", "5", "1"], stdout=kvdtest.PIPE, user=61001,
                        group=61001, extra_groups=[])
        worst = 0
        while child.poll() is None:
            begin = time.monotonic()
            d.stats(timeout=60)
            worst = max(worst, time.monotonic() - begin)
        print(f"# {child.communicate()[0].decode().strip()}; slowest answer {worst:.3f} s")
        equal(child.returncode, 0, "exit status of the hostile client")
        assert worst < 5, f"an answer took {worst:.1f} s"
        back_at(d, base)


def unprivileged():
    """Who may administer the system or its resources is not counted."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_SYS_ADMIN, CAP_SYS_RESOURCE):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


@limit(600)
def test_receives_no_descriptors():
    """The kernel counts those that are on their way against the daemon's user."""
    if os.getuid() != 0:
        raise Skip("needs root, to become another user")
    with Daemon(POOL, start=False) as d:
        d.popen = {"preexec_fn": unprivileged}
        d.start()
        os.chmod(d.socket, 0o666)
        base = base_of(d)
        child = d.spawn([HOSTILE, "inflight", "6", "1"], stdout=kvdtest.PIPE, user=61001,
                        group=61001, extra_groups=[])
        time.sleep(3)
        # A ring of each: that is what fails where the attacker has used all up.
        for _ in range(4):
            d.generate("One, two,", tokens=2)
        child.communicate(timeout=60)
        d.generate("One, two,", tokens=2)
        back_at(d, base)


@limit(600)
def test_never_reads_its_socket():
    play("deaf", 0.2)


@limit(600)
def test_connects_without_end():
    # Of its own user's connections it leaves none. Each that is accepted costs the loop some
    # system calls, a crowd of them a few milliseconds.
    play("connects", 0.2, user=61001, group=61001, extra_groups=[])


@limit(600)
def test_changes_what_is_being_read():
    play("flip", 0.2)


@limit(600)
def test_rings_without_end():
    play("bells", 0.2)


@limit(600)
def test_claims_impossible_positions():
    play("positions", 0.2)


@limit(600)
def test_half_packets_before_hello():
    # Its connections come as fast as those of test_connects_without_end().
    play("halves", 0.3, user=61001, group=61001, extra_groups=[])


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
