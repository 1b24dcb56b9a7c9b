#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a command with the environment and the system calls of kvd.service.

usage: as_installed.py [--kill] COMMAND...

--kill ends the command by SIGSYS at the first call that the unit refuses, in place of EPERM.

What a benchmark measures is then what an installed daemon does: the loop's backend follows
from the filter, and each call passes it. libseccomp, which systemd uses as well, makes the
filter; without it the command runs as it is, which is said on standard error.
"""
import ctypes
import os
import re
import sys

UNIT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                    "systemd", "kvd.service.in")
ACT_ALLOW = 0x7fff0000
ACT_EPERM = 0x00050000 | 1
ACT_KILL = 0x80000000
# Its socket units do these for the service.
SOCKET_UNIT = "flock bind listen umask unlink lstat"
# Tried once, to learn that it is refused.
TRIED = "sched_setaffinity"
NOT_SERVICE = ("KVD_SANDBOX", "KVD_FDSTORE_MAX")  # say that there is a manager and a sandbox


def settings():
    """The unit's lines, as a list of values for each name."""
    found = {}
    with open(UNIT, encoding="utf-8") as f:
        for name, value in re.findall(r"^(\w+)=(.*)$", f.read(), re.M):
            found.setdefault(name, []).append(value)
    return found


def environment(unit):
    """What the unit sets, but for what says that it is the unit."""
    pairs = (line.split("=", 1) for line in unit.get("Environment", []))
    return {name: value for name, value in pairs if name not in NOT_SERVICE}


def make_filter(unit, otherwise, finish):
    """Permit the unit's calls and no others. `finish`: loads or writes what libseccomp made.
    Return: whether it could be done."""
    calls = " ".join([*unit["SystemCallFilter"], SOCKET_UNIT]).split()
    try:
        lib = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return False
    lib.seccomp_init.restype = ctypes.c_void_p
    ctx = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(otherwise)))
    if not ctx:
        return False
    rules = [(call, ACT_ALLOW) for call in calls]
    if otherwise != ACT_EPERM:
        rules += [(call, ACT_EPERM) for call in TRIED.split() if call not in calls]
    for call, action in rules:
        number = lib.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # others have none on this machine
            lib.seccomp_rule_add(ctx, ctypes.c_uint32(action), number, 0)
    return finish(lib, ctx) == 0


def load(lib, ctx):
    return lib.seccomp_load(ctx)


def write_filter(path):
    """The filter as a file, for confine.c. Return: whether there is one."""
    with open(path, "wb") as f:
        return make_filter(settings(), ACT_EPERM,
                           lambda lib, ctx: lib.seccomp_export_bpf(ctx, f.fileno()))


def main():
    unit, command = settings(), sys.argv[1:]
    kill = command[0] == "--kill"
    os.environ.update(environment(unit))
    if not make_filter(unit, ACT_KILL if kill else ACT_EPERM, load):
        print("as_installed.py: no libseccomp: without the filter of kvd.service",
              file=sys.stderr)
        if kill:
            sys.exit(77)
    os.execv(command[kill], command[kill:])


if __name__ == "__main__":
    main()
