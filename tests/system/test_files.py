#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Files that kvd must refuse: with a non-zero exit and a line that names what is wrong."""
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import kvdtest
from kvdtest import FAILED, KVD, MODEL, Daemon, Skip, equal, limit

REPORT = re.compile(r"AddressSanitizer|LeakSanitizer|runtime error:|Assertion")


def start(folder, model=MODEL, options=(), config="", args=(), timeout=60, **more):
    """Run kvd until it ends or serves. Return: (exit status or None, its messages)."""
    path = os.path.join(folder, "kvd.conf")
    with open(path, "wb") as f:
        f.write(config if isinstance(config, bytes) else config.encode())
    command = [KVD, "--config", path, "-o", f"daemon.socket={folder}/kvd.sock",
               "-o", f"model.path={model}", "-o", "cache.kv_cache_memory=16M"]
    for option in options:
        command += ["-o", option]
    process = subprocess.Popen([*command, *args], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    text = b""
    for line in process.stdout:
        text += line
        if line.startswith(b"socket: "):
            process.terminate()
            process.wait(timeout)
            process.stdout.close()
            return None, text.decode(errors="replace")
    process.stdout.close()
    return process.wait(timeout), text.decode(errors="replace")


BAD_CONFIG = 78  # EX_CONFIG: the service manager need not try again


def refused(what, needles, folder, want=1, **more):
    """kvd ends with exit status `want`, says so in one line, and the line holds the needles."""
    status, text = start(folder, **more)
    assert not REPORT.search(text), f"{what}: {text}"
    equal(status, want, f"{what}: exit status ({text.strip()[-300:]!r})")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    about = [line for line in lines if all(n.lower() in line.lower() for n in needles)]
    equal(len(about), 1, f"{what}: lines that say {needles}: {text!r}")
    assert len(last) < 600, f"{what}: {len(last)} bytes are no clear line"


def image(n=None):
    with open(MODEL, "rb") as f:
        return bytearray(f.read() if n is None else f.read(n))


def write(folder, data, name="bad.gguf"):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


@limit(300)
def test_model_files_that_are_none():
    with tempfile.TemporaryDirectory() as folder:
        refused("no such file", ["nothing.gguf", "No such file"], folder,
                model=os.path.join(folder, "nothing.gguf"))
        refused("a folder", [folder], folder, model=folder)
        refused("an empty file", ["bad.gguf"], folder, model=write(folder, b""))
        refused("text", ["bad.gguf"], folder, model=write(folder, b"hello, world\n" * 100))
        refused("version 1", ["bad.gguf", "version"], folder,
                model=write(folder, b"GGUF" + struct.pack("<I", 1) + bytes(64)))
        refused("version 99", ["bad.gguf", "version"], folder,
                model=write(folder, b"GGUF" + struct.pack("<I", 99) + bytes(64)))
        refused("big-endian", ["bad.gguf"], folder,
                model=write(folder, b"GGUF" + struct.pack(">I", 3) + bytes(64)))
        refused("huge counts", ["bad.gguf"], folder,
                model=write(folder, b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60)))


@limit(300)
def test_unreadable_model():
    if os.getuid() != 0:
        raise Skip("needs root, to become somebody else")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = write(folder, b"GGUF")
        os.chmod(path, 0o000)
        with open(os.path.join(folder, "kvd.conf"), "wb"):
            pass
        os.chmod(os.path.join(folder, "kvd.conf"), 0o666)
        refused("an unreadable file", ["bad.gguf", "Permission denied"], folder, model=path,
                user=65534, group=65534, extra_groups=[])


@limit(300)
def test_truncated_model():
    with tempfile.TemporaryDirectory() as folder:
        for size in (3, 4, 11, 23, 24, 100, 5000, 1_000_000, 1_785_000, 1_785_664, 50_000_000,
                     os.path.getsize(MODEL) - 1):
            refused(f"cut at {size}", ["bad.gguf"], folder, model=write(folder, image(size)))


@limit(300)
def test_model_cut_while_it_is_read():
    """A copy over the file, a download that begins again: an error, not a signal."""
    whole = image()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.gguf")
        config = os.path.join(folder, "kvd.conf")
        with open(config, "wb"):
            pass
        n_cut = 0
        for delay in (0.02, 0.05, 0.1, 0.2, 0.4):
            write(folder, whole)
            process = subprocess.Popen(
                [KVD, "--config", config, "-o", f"daemon.socket={folder}/kvd.sock",
                 "-o", f"model.path={path}", "-o", "cache.kv_cache_memory=16M"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True)
            time.sleep(delay)
            os.truncate(path, 1_000_000)
            for line in process.stdout:
                if line.startswith("socket: "):
                    process.terminate()
                    break
                cut = "bad.gguf" in line and ("became shorter" in line or "truncated" in line)
                n_cut += cut
            process.stdout.close()
            status = process.wait(60)
            # loaded before it was cut, or refused
            assert status in (0, FAILED), f"cut after {delay} s: exit status {status}"
        assert n_cut > 0, "each load was over before its file was cut"


def patched(old, new, after=b""):
    data = image()
    at = data.index(old, data.index(after) if after else 0)
    data[at:at + len(new)] = new
    return data


@limit(300)
def test_models_that_kvd_does_not_know():
    with tempfile.TemporaryDirectory() as folder:
        refused("architecture", ["lemma"], folder, model=write(
            folder, patched(b"llama", b"lemma", after=b"general.architecture")))
        # Tensor type Q4_1 (3) becomes one that does not exist.
        name = b"blk.0.ffn_down.weight"
        data = image()
        at = data.index(name) + len(name) + 4 + 2 * 8
        equal(struct.unpack_from("<I", data, at)[0], 3, "type of the tensor to be patched")
        struct.pack_into("<I", data, at, 77)
        refused("tensor type", ["blk.0.ffn_down.weight", "77"], folder,
                model=write(folder, data))
        struct.pack_into("<I", data, at, 3)
        struct.pack_into("<Q", data, at + 4, 1 << 62)
        refused("tensor outside", ["blk.0.ffn_down.weight"], folder, model=write(folder, data))
        # Q4_K is known to kvd, but its blocks of 256 do not divide rows of 576.
        name = b"blk.0.ffn_up.weight"
        data = image()
        struct.pack_into("<I", data, data.index(name) + len(name) + 4 + 2 * 8, 12)
        refused("wrong type", ["blk.0.ffn_up.weight"], folder, model=write(folder, data))


def ask(d, *args):
    """Exit status and message of one client."""
    done = d.kvctl(*args, status=None)
    return done.returncode, done.stderr


@limit(300)
def test_unknown_tokenizer():
    """It serves token ids, names what it does not know, and refuses text."""
    for new, after in ((b"smallm", b"tokenizer.ggml.pre"), (b"gpt9", b"tokenizer.ggml.model")):
        with tempfile.TemporaryDirectory() as folder:
            model = write(folder, patched(b"smollm" if len(new) == 6 else b"gpt2", new, after))
            with Daemon({"cache.kv_cache_memory": "16M"}, model=model) as d:
                equal(d.log().count(new.decode()), 1, f"lines that name {new}: {d.log()}")
                status, message = ask(d, "tokenize", "Hello")
                equal(status, FAILED, f"exit status of tokenize ({message!r})")
                assert "tokenizer" in message, message


@limit(300)
def test_unknown_chat_template():
    """Conversations are refused by name; text is not, nor a template chosen by hand."""
    with tempfile.TemporaryDirectory() as folder:
        data = image()
        begin = data.index(b"tokenizer.chat_template")
        end = begin + 1500
        data[begin:end] = data[begin:end].replace(b"<|im_start|>", b"<|xx_start|>").replace(
            b"<|im_end|>", b"<|xx_end|>")
        model = write(folder, data)
        with Daemon({"cache.kv_cache_memory": "16M"}, model=model) as d:
            assert "template" in d.log(), d.log()
            status, message = ask(d, "generate", "Hello")
            assert status not in (0, 2) and "template" in message, (status, message)
            equal(ask(d, "generate", "--raw", "--max-tokens", "2", "Hello")[0], 0, "plain text")
        with Daemon({"cache.kv_cache_memory": "16M", "model.chat_template": "chatml"},
                    model=model) as d:
            equal(ask(d, "generate", "--max-tokens", "2", "Hello")[0], 0, "chosen by hand")


@limit(900)
def test_random_damage():
    """Any byte of the header changed: it may load, it may be refused, it may not crash."""
    rng = random.Random(2024)
    good = image()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.gguf")
        shutil.copyfile(MODEL, path)
        n_refused = 0
        for turn in range(kvdtest.rounds(40)):
            # Half the damage in the keys, a quarter each in vocabulary and tensor table.
            low, high = [(0, 2000), (0, 2000), (2000, 1_700_000), (1_765_000, 1_785_664)][turn % 4]
            at = [rng.randrange(low, high) for _ in range(rng.randrange(1, 4))]
            with open(path, "r+b") as f:
                for i in at:
                    f.seek(i)
                    f.write(bytes([rng.randrange(256)]))
            status, text = start(folder, model=path)
            assert not REPORT.search(text), f"bytes {at}: {text}"
            assert status in (None, 1), f"bytes {at}: exit status {status}: {text[-300:]}"
            n_refused += status == 1
            with open(path, "r+b") as f:
                for i in at:
                    f.seek(i)
                    f.write(good[i:i + 1])
        print(f"# {n_refused} of {turn + 1} were refused")
        assert n_refused > 0, "nothing was refused"


CONFIGS = [
    ("unknown key", "[cache]\nblock_sise = 16\n", ["kvd.conf:2", "block_sise", "block_size"]),
    ("unknown section", "[cash]\nblock_size = 16\n", ["kvd.conf:", "cash"]),
    ("text for a number", "[scheduler]\nmax_num_seqs = many\n", ["kvd.conf:2", "max_num_seqs"]),
    ("number with a tail", "[scheduler]\nmax_num_seqs = 12x\n", ["kvd.conf:2", "max_num_seqs"]),
    ("negative", "[scheduler]\nmax_num_seqs = -1\n", ["kvd.conf:2", "max_num_seqs"]),
    ("too large", "[scheduler]\nmax_num_seqs = 99999999999999999999\n",
     ["kvd.conf:2", "max_num_seqs"]),
    ("zero", "[scheduler]\nmax_num_seqs = 0\n", ["kvd.conf:2", "max_num_seqs"]),
    ("no such choice", "[cache]\nkv_cache_dtype = int3\n", ["kvd.conf:2", "kv_cache_dtype"]),
    ("a type that no pool has", "[cache]\nkv_cache_dtype = bfloat16\n",
     ["kvd.conf:2", "kv_cache_dtype", "use fp16"]),
    ("half a pair", "[cache]\nkv_cache_dtype = k=int8\n", ["kvd.conf:2", "k=int8,v=int4"]),
    ("a size without sense", "[cache]\nkv_cache_memory = 4 elephants\n",
     ["kvd.conf:2", "kv_cache_memory"]),
    ("no yes and no no", "[cache]\nenable_prefix_caching = perhaps\n",
     ["kvd.conf:2", "enable_prefix_caching"]),
    ("no equals sign", "[cache]\nblock_size 16\n", ["kvd.conf:2"]),
    ("section left open", "[cache\nblock_size = 16\n", ["kvd.conf:1"]),
    ("a long line", "[model]\nname = " + "x" * 5000 + "\n", ["kvd.conf:2"]),
    ("a NUL byte", b"[model]\nname = a\0b\n", ["kvd.conf:2"]),
]


@limit(120)
def test_configuration_mistakes():
    with tempfile.TemporaryDirectory() as folder:
        for what, text, needles in CONFIGS:
            refused(what, needles, folder, want=BAD_CONFIG, config=text)
            refused(what, needles, folder, want=BAD_CONFIG, config=text,
                    args=["--check-config"])
        refused("no such file", ["missing.conf"], folder, want=BAD_CONFIG,
                args=["--config", os.path.join(folder, "missing.conf")])
        for option, needle in (("cache.block_sise=16", "block_sise"), ("block_size", "block_size"),
                               ("scheduler.max_num_seqs=ten", "max_num_seqs")):
            refused(f"-o {option}", [needle], folder, want=BAD_CONFIG, options=[option])
        status, text = start(folder, config="[cache]\nblock_sise = 1\nkv_cache_dtype = x\n",
                             args=["--check-config"])
        equal(status, BAD_CONFIG, "two mistakes")
        assert "kvd.conf:2" in text and "kvd.conf:3" in text, f"not both are named: {text!r}"
        status, text = start(folder, args=["--check-config"])
        equal(status, 0, f"--check-config of a right file: {text!r}")


def test_model_behind_the_sandbox():
    """In the unit, a file that is not there may be one that the sandbox hides; elsewhere not."""
    with tempfile.TemporaryDirectory() as folder:
        for level, hint in (("full", True), ("", False)):
            status, text = start(folder, model="/mnt/nosuch.gguf",
                                 env={**os.environ, "KVD_SANDBOX": level})
            equal(status, 1, text)
            equal("BindReadOnlyPaths=" in text and "/var/lib/kvd/models" in text, hint, text)


NAMES = [
    ("a user", "users = root nosuch-user\n", ["kvd.conf:2", "no user 'nosuch-user'"]),
    ("a group", "groups = nosuch-group\n", ["kvd.conf:2", "no group 'nosuch-group'"]),
    ("a negative number", "users = -1\n", ["kvd.conf:2", "no user '-1'"]),
    ("a reserved uid", "users = 4294967295\n", ["kvd.conf:2", "4294967295"]),
    ("a user of two domains", "users = 7\n[domain y]\nusers = 7\n", ["kvd.conf:4", "uid 7"]),
]


def test_names_that_there_are_not():
    """--check-config and --reload look them up; a start warns and leaves them out."""
    with tempfile.TemporaryDirectory() as folder:
        for what, text, needles in NAMES:
            text = "[domain x]\n" + text
            for args in (["--check-config"], ["--reload", str(os.getpid())]):
                refused(what, needles, folder, want=BAD_CONFIG, config=text, args=args)
            status, said = start(folder, config=text)
            equal(status, None, f"{what}: it serves: {said!r}")
            assert all(n in said for n in needles) and "warning" in said, f"{what}: {said!r}"
        refused("a reserved name", ["[domain public]"], folder, want=BAD_CONFIG,
                config="[domain public]\nusers = 7\n")


def test_cheap_mistakes_come_first():
    """What can be seen at once is seen before the model is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "file"), "w", encoding="ascii"):
            pass
        for what, path, needle in (
                ("a missing folder", f"{folder}/no/kvd.sock", "No such file"),
                ("a file in the way", f"{folder}/file", "is not a socket"),
                ("a folder that is none", f"{folder}/file/kvd.sock", "Not a directory"),
        ):
            status, text = start(folder, options=[f"daemon.socket={path}"])
            equal(status, 1, f"{what}: {text!r}")
            assert needle in text and "model" not in text.replace("model.path", ""), text
        with kvdtest.Daemon({"cache.kv_cache_memory": "16M"}) as d:
            status, text = start(folder, options=[f"daemon.socket={d.socket}"])
            equal(status, 1, f"a second daemon: {text!r}")
            assert f"serves {d.socket}" in text and "ready" not in text, text
        equal(os.listdir(folder).count("kvd.sock.lock"), 0, "locks left over")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
