#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kvctl plan: the figures of a model without loading it."""
import json
import os
import subprocess
import sys
import tempfile

import kvdtest
import tinygguf
from kvdtest import FAILED, KVCTL, MODEL, OK, USAGE, Daemon, equal


def plan(*args, status=OK):
    done = subprocess.run([KVCTL, "plan", *args], text=True, timeout=60, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    equal(done.returncode, status, f"exit code of plan {args}: {done.stderr}")
    return json.loads(done.stdout) if "--json" in args and status == OK else done


def test_plan_of_a_large_model():
    """LLaMA-2-70B at batch 64: what is 68 GB in fp16 takes 38 GB at most in int8, as others
    report. The figures are worked out by hand from the documented planes."""
    shape = ["--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128",
             "--batch", "64", "--context", "3240"]
    told = plan(*shape, "--memory", "80G", "--json")
    fp16, int8, int4 = (told["formats"][f] for f in ("fp16", "int8", "int4"))
    equal(fp16["bytes_per_token"], 80 * 8 * 128 * 2 * 2, "bytes of a token in fp16")
    # 3,240 tokens are 203 blocks of 16.
    equal(fp16["bytes"], 64 * 203 * 16 * 327680, "bytes of the batch in fp16")
    assert 67e9 < fp16["bytes"] < 69e9, fp16
    # K and V: a byte for each dim, two halves for each head.
    equal(int8["bytes_per_token"], 80 * 8 * 2 * (128 + 4), "bytes of a token in int8")
    assert int8["bytes"] <= 38e9, int8
    # V: half a byte for each dim and two halves; K: half a byte, two bytes for each dim of a
    # block and two halves for each head of a block.
    equal(int4["bytes_per_token"], 80 * 8 * (64 + 4 + 64 + (2 * 128 + 4) / 16),
          "bytes of a token in int4")
    equal(int4["tail_bytes"], 16 * fp16["bytes_per_token"], "a partial block in fp16")
    memory = 80 << 30
    for name, f in told["formats"].items():
        equal(f["num_blocks"], memory // f["block_bytes"], f"blocks of {name}")
        one = 203 * f["block_bytes"] + f["tail_bytes"]
        equal(f["batch_that_fits"], memory // one, f"batch that fits with {name}")
        assert f["block_bytes"] <= 1.001 * 16 * f["bytes_per_token"] + 4096, f"padding of {name}"
    assert "68.1 GB" in plan(*shape).stdout


def test_plan_is_what_the_daemon_does():
    told = plan("--model", MODEL, "--block-size", "16", "--memory", "64M", "--json")
    equal([told["model"][k] for k in ("n_layers", "n_kv_heads", "head_dim")], [30, 3, 64], "shape")
    equal(told["context"], 8192, "context")
    for name in ("fp16", "int8", "int4"):
        with Daemon({"cache.kv_cache_dtype": name, "cache.kv_cache_memory": "64M"}) as d:
            cache = d.stats()["cache"]
            want = told["formats"][name]
            equal(cache["bytes_per_token"], want["bytes_per_token"], f"bytes of a token, {name}")
            equal(cache["block_bytes"], want["block_bytes"], f"bytes of a block, {name}")
            equal(cache["blocks_total"], want["num_blocks"], f"blocks, {name}")


def test_plan_over_devices():
    """Each device has its own blocks, so int4's pair plane is padded on each: one KV head of 64 in
    a block of 16 is 1,216 bytes, and its pair takes 64 more on every device."""
    shape = ["--layers", "1", "--heads", "2", "--head-dim", "64", "--json"]
    one = plan(*shape)
    two = plan(*shape, "--tensor-parallel-size", "2")
    equal([p["tensor_parallel_size"] for p in (one, two)], [1, 2], "devices")
    equal(one["formats"]["int4"]["block_bytes"], 2 * 1216 + 64, "bytes of a block, one device")
    equal(two["formats"]["int4"]["block_bytes"], 2 * (1216 + 64), "bytes of a block, two devices")
    equal(two["formats"]["int4"]["tail_bytes"], one["formats"]["int4"]["tail_bytes"], "tail")
    equal(two["formats"]["int8"], one["formats"]["int8"], "what is not padded")
    told = plan("--model", MODEL, "--memory", "64M", "--tensor-parallel-size", "3", "--json")
    with Daemon({"cache.kv_cache_dtype": "int4", "cache.kv_cache_memory": "64M",
                 "model.tensor_parallel_size": "3"}) as d:
        cache = d.stats()["cache"]
        want = told["formats"]["int4"]
        for key, name in (("bytes_per_token", "bytes_per_token"), ("block_bytes", "block_bytes"),
                          ("blocks_total", "num_blocks")):
            equal(cache[key], want[name], name)


def test_plan_of_an_odd_name():
    """What a file calls itself is shown as text; the sum of what never fits is no small number."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "odd.gguf")
        tinygguf.write_model(path, name='\x1b[2J \x9b é "q"')
        equal(plan("--model", path, "--json")["model"]["name"], '?[2J ? é "q"', "name as JSON")
        assert "\x1b" not in plan("--model", path).stdout, "an escape on the terminal"
    shape = ("--layers", "1024", "--heads", "1024", "--head-dim", "256", "--batch", "1048576",
             "--context", "1073741824", "--json")
    equal(plan(*shape)["formats"]["fp16"]["bytes"], 2 ** 64 - 1, "bytes, saturated")


def test_plan_says_what_is_wrong():
    for args, status, words in (
            ([], USAGE, "--layers"), (["--model", "/nonexistent"], FAILED, "/nonexistent"),
            (["--model", "/etc/passwd"], FAILED, "/etc/passwd"),
            (["--layers", "2", "--heads", "4", "--head-dim", "100"], FAILED, "multiple of 8"),
            (["--layers", "2", "--heads", "4", "--head-dim", "x"], USAGE, "--head-dim"),
            (["--layers", "2", "--heads", "4", "--head-dim", "64", "--memory", "9Q"], USAGE, "9Q"),
            (["--model", MODEL, "--tensor-parallel-size", "2"], FAILED, "3 KV heads"),
            (["--model", MODEL, "--tensor-parallel-size", "17"], USAGE, "from 1 to 16"),
            (["--model", MODEL, "--layers", "2"], USAGE, "--model")):
        done = plan(*args, status=status)
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
