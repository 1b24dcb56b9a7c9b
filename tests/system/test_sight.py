#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a user can see of another one: nothing. Each answer to an ordinary client is the same
whether or not others work, and so is the time of a lookup."""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import kvdtest
import tinygguf
from kvdtest import BUILD, SANITIZED, Daemon, Skip, limit

SPY = os.path.join(BUILD, "tests", "system", "spy")


@contextlib.contextmanager
def tiny_daemon(**options):
    if os.getuid() != 0:
        raise Skip("needs root, to become two other users")
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "tiny.gguf"), n_vocab=1024)
        with Daemon({"cache.kv_cache_memory": "64M", **options}, model=model) as d:
            os.chmod(d.socket, 0o666)
            yield d


def spread(trials):
    """Four standard deviations of the AUC of two halves that do not differ."""
    half = trials / 2
    return 4 * ((2 * half + 1) / (12 * half * half)) ** 0.5


@limit(3600)
def test_lookups_take_as_long_whatever_others_ask():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("needs a CPU for the loop and one for who watches it")
    trials = LONG or (300 if SANITIZED else 1500)
    with tiny_daemon() as d:
        os.sched_setaffinity(d.process.pid, {cpus[0]})
        done = subprocess.run([SPY, str(trials), str(cpus[1])], env=d.env(), check=False,
                              capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
    for t in told:
        print(f"# {t['kind']}: AUC {t['auc']:.3f} of {t['trials']} trials, medians "
              f"{t['asked_ns']} and {t['other_ns']} ns")
    for t in told:
        if t["same_user"]:
            # the probe can see what there is to see
            assert abs(t["auc"] - 0.5) > 0.45, t
        else:
            off = 0.05 if LONG else max(0.05, spread(trials))
            assert abs(t["auc"] - 0.5) <= off, t


if __name__ == "__main__":
    LONG = 10000 if "--long" in sys.argv else 0
    if LONG:
        sys.argv.remove("--long")
    sys.exit(kvdtest.run(globals()))
