#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Branches of sequences. Field case 55: forks at each offset inside a block, any order."""
import os
import sys

import kvdtest
from kvdtest import Daemon, equal, limit

BRANCH = os.path.join(os.path.dirname(kvdtest.HOSTILE), "branch")


def branch(options, *args):
    with Daemon({"cache.kv_cache_memory": "64M", **options}) as d:
        child = d.spawn([BRANCH, *args], stdout=kvdtest.PIPE)
        out = child.communicate(timeout=500)[0].decode()
        print("# " + out.strip().replace("\n", "\n# "))
        equal(child.returncode, 0, "exit status of branch")


@limit(600)
def test_forks():
    branch({})


@limit(900)
def test_forks_in_each_format():
    """Rows of the block that a branch writes into are copied (fp16, int8, fp8_e4m3) or
    computed again (int4): the same bits either way."""
    for dtype in ("int8", "int4", "fp8_e4m3", "k=int8,v=int4"):
        branch({"cache.kv_cache_dtype": dtype, "cache.kv_quality_check": "off"})


def test_kept_tokens_are_charged():
    branch({}, "keep")


@limit(600)
def test_forks_in_small_steps():
    branch({"scheduler.max_num_batched_tokens": "19", "scheduler.max_num_seqs": "5", "quota.max_running": "5"})


@limit(600)
def test_forks_without_a_prefix_cache():
    branch({"cache.enable_prefix_caching": "no"})


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
