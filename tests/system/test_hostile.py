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
  never reading socket or completions        deaf, noread; test_edges: costs nothing
  connecting by the hundred                  connects; test_users: connection limit
  taking over a process id                   test_users: rights follow the user
  an entry that changes while it is read     flip, scribble
  positions and numbers that cannot be       positions, scribble; suite unit: rings
  keeping the daemon awake                   bells; test_service: idle clients
"""
import os
import sys
import time

import kvdtest
from kvdtest import HOSTILE, SANITIZED, Daemon, Skip, equal, limit, until
from test_death import POOL, Neighbour, back_at, base_of

TIME = kvdtest.seconds(10 if SANITIZED else 8)
LEFT_OUT_US = 500000


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


def play(verb, share=1.0, **who):
    """Two clients that misbehave beside an honest one, for a share of the usual time."""
    time_s = share * TIME
    if who and os.getuid() != 0:
        raise Skip("needs root, to become another user")
    with Daemon(POOL) as d:
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
