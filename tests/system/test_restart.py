#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A daemon that comes again finds its cache: warm, right, or cold for a reason."""
import fcntl
import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time

import fdstore
import kvdtest
import tinygguf
from fdstore import STORED, Kept
from kvdtest import SANITIZED, equal, limit, prose, rounds, until

POOL = {"cache.kv_cache_memory": "96M"}
KINDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT)


def facts(answer):
    return answer["tokens"], answer["logprobs"]


def ask(d, seed, n_words=150, **more):
    return d.generate(prose(n_words, seed), tokens=12, logprobs=True, **more)


def notes(d, what):
    return [line for line in d.log().split("\n") if what in line]


# Packed weights are kept.
FILES = "kvweights" in STORED


def packed(d):
    """For each start, whether it packed the weights."""
    return [" MiB of weights (kept)," not in line for line in notes(d, " MiB of weights")]


def idle(d):
    """All blocks of ended requests are written down: the daemon has nothing else to do."""
    until(lambda: d.stats()["requests"]["running"] == 0, 10, "an idle daemon")
    d.stats()


@limit(900)
def test_warm_after_every_end():
    """kill -9, SIGTERM, abort: the second daemon hits, and says the same to the bit."""
    for dtype in ("fp16",) if SANITIZED else ("fp16", "int8", "int4"):
        with Kept({**POOL, "cache.kv_cache_dtype": dtype}) as d:
            first = ask(d, 1)
            equal(first["cached_tokens"], 0, "hits of the first")
            hit = ask(d, 1)
            generation = d.stats()["generation"]
            for i, sig in enumerate(KINDS, 1):
                idle(d)
                d.restart(sig)
                stats = d.stats()
                equal(stats["generation"], generation + i, "generation")
                assert stats["cache"]["blocks_cached"] > 0, stats["cache"]
                again = ask(d, 1)
                equal(facts(again), facts(first), f"{dtype} after {sig.name}")
                # rows of a block that was not full are computed again
                assert again["cached_tokens"] >= hit["cached_tokens"] // 16 * 16, again
            equal(len(notes(d, "warm start")), 3, "lines of warm starts")
            equal(packed(d), [True] + [not FILES] * 3, "starts that packed weights")
            equal(d.manager.names(), STORED, "the FD store")


@limit(600)
def test_kills_at_random_instants():
    """Whatever it was doing: warm every time, right every time, even accounts."""
    rng = random.Random(11)
    n = rounds(int(os.environ.get("KVD_RESTARTS", "12")))
    with Kept(POOL) as d:
        want = {seed: facts(ask(d, seed)) for seed in range(4)}
        hits = 0
        for i in range(n):
            child = d.spawn_generate(prose(400, 100 + i), tokens=64)
            until(lambda: d.stats()["requests"]["running"] or child.poll() is not None, 10,
                  "a request that runs")
            # a prefill of some steps, and blocks that are being written down
            until(lambda end=rng.random(): rng.random() < 0.2 + end, 10, "a moment")
            d.restart(signal.SIGKILL)
            kvdtest.kill(child)
            assert len(notes(d, "warm start")) == i + 1, d.log()
            seed = rng.randrange(4)
            got = ask(d, seed)
            hits += got["cached_tokens"]
            equal(facts(got), want[seed], f"answer after kill {i}")
        print(f"# {n} kills, {hits / n:.0f} tokens found each time")
        assert hits > 0, "no hit after any restart"
        equal(notes(d, "were not as they had been left"), [], "damaged blocks")


@limit(600)
def test_damaged_bytes_are_computed_again():
    """Bytes of the pool that change behind kvd's back: a miss, one line, the right answer."""
    with Kept(POOL) as d:
        first = ask(d, 1)
        other = ask(d, 2)
        idle(d)
        equal(d.stop(signal.SIGKILL), -signal.SIGKILL, "exit status")
        fd = d.manager.file("kvpool")
        with mmap.mmap(fd, 0) as pool:
            # one byte in each page that is in use
            for at in range(0, len(pool), 4096):
                if pool[at:at + 4096] != bytes(4096):
                    pool[at + 77] ^= 1
        os.close(fd)
        d.start()
        assert d.stats()["cache"]["blocks_cached"] > 0, "the index came back"
        again = ask(d, 1)
        equal(facts(again), facts(first), "the answer")
        equal(again["cached_tokens"], 0, "hits on damaged blocks")
        equal(facts(ask(d, 2)), facts(other), "the other answer")
        lines = notes(d, "were not as they had been left")
        assert 1 <= len(lines) <= 2, lines
        assert ask(d, 1)["cached_tokens"] > 0, "computed again, and cached again"


@limit(600)
def test_damaged_image_is_no_crash():
    """Noise over the image: what is whole is used, or all is dropped; and it always starts."""
    rng = random.Random(5)
    with Kept(POOL) as d:
        first = ask(d, 1)
        for _ in range(rounds(8)):
            idle(d)
            equal(d.stop(signal.SIGKILL), -signal.SIGKILL, "exit status")
            fd = d.manager.file("kvimage")
            with mmap.mmap(fd, 0) as image:
                for _ in range(rng.choice((1, 40, 4000))):
                    image[rng.randrange(len(image))] = rng.randrange(256)
            os.close(fd)
            d.start()
            equal(facts(ask(d, 1)), facts(first), "the answer")
        equal(d.manager.names(), STORED, "the FD store")


def cold(d, why):
    """The daemon starts again, cold, says why in one line, and the next start is warm."""
    before = len(notes(d, "is dropped"))
    d.start()
    lines = notes(d, "is dropped")
    equal(len(lines), before + 1, "lines of cold starts")
    assert why in lines[-1], lines[-1]
    equal(d.stats()["cache"]["blocks_cached"], 0, "blocks after a cold start")
    ask(d, 1)
    idle(d)
    warm = len(notes(d, "warm start"))
    d.restart(signal.SIGKILL)
    equal(len(notes(d, "warm start")), warm + 1, "the start after")
    equal(len(notes(d, "is dropped")), before + 1, "lines of cold starts")
    assert ask(d, 1)["cached_tokens"] > 0, "a hit"
    d.stop(signal.SIGKILL)


@limit(600)
def test_what_does_not_fit_is_dropped():
    with Kept(POOL) as d:
        ask(d, 1)
        idle(d)
        d.stop(signal.SIGKILL)
        d.options["cache.kv_cache_dtype"] = "int8"
        cold(d, "kv_cache_dtype")
        d.options["cache.kv_cache_memory"] = "64M"
        cold(d, "size")
        d.options["cache.block_size"] = "32"
        cold(d, "size")
        # pool without image, and files that could change their size
        for name in ("kvimage", "kvpool"):
            with d.manager.lock:
                entry = next(e for e in d.manager.store if e[0] == name)
                os.close(entry[1])
                d.manager.store.remove(entry)
            cold(d, "damaged")
        pool = d.manager.file("kvpool")
        loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
        os.ftruncate(loose, os.fstat(pool).st_size)
        os.close(pool)
        swap(d, "kvpool", loose)
        cold(d, "damaged")
        # two of one name
        with d.manager.lock:
            d.manager.store.append(["kvpool", os.memfd_create("two")])
        cold(d, "damaged")
        equal(d.manager.names(), STORED, "the FD store")
        # none at all
        model, d.model = d.model, ""
        d.start()
        assert "no model" in notes(d, "is dropped")[-1], d.log()
        equal(d.manager.names(), [], "the FD store without a model")
        d.model = model
        d.restart()
        ask(d, 1)


def swap(d, name, fd):
    """Something else lies in the store by that name."""
    with d.manager.lock:
        entry = next(e for e in d.manager.store if e[0] == name)
        os.close(entry[1])
        entry[1] = fd


def copy_of(d, name, size=None):
    """A file of the same bytes, up to size, that nothing seals."""
    fd = d.manager.file(name)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE) as old:
        copy = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
        with open(copy, "wb", closefd=False) as f:
            f.write(old[:size])
    os.close(fd)
    return copy


@limit(600)
def test_weights_that_do_not_fit_are_packed():
    """Kept weights are used by the same executable, for the same file, if nobody could have
    changed them; the answer is the same either way."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    write = 0x0008  # F_SEAL_WRITE
    if not FILES:
        raise kvdtest.Skip("no huge pages for files in this kernel: no weights are kept")
    with tempfile.TemporaryDirectory() as folder, Kept(POOL) as d:
        first = ask(d, 1)

        def start(fresh, what):
            if d.process.poll() is None:
                d.stop(signal.SIGKILL)
            d.start()
            equal(packed(d)[-1], fresh, f"packed again with {what}")
            equal(facts(ask(d, 1)), facts(first), f"the answer with {what}")
            equal(d.manager.names(), STORED, f"the FD store with {what}")

        start(False, "nothing changed")
        fd = d.manager.file("kvweights")
        equal(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & (seals | write), seals | write, "seals")
        os.close(fd)
        # the same bytes, but somebody may still write to them
        for more in (0, seals):
            loose = copy_of(d, "kvweights")
            fcntl.fcntl(loose, fcntl.F_ADD_SEALS, more)
            swap(d, "kvweights", loose)
            start(True, f"seals {more:#x}")
        # sealed, and of another version, executable, model file or digest, or cut short
        for at, size in ((8, None), (40, None), (80, None), (120, None), (None, 64)):
            forged = copy_of(d, "kvweights", size)
            if at:
                os.pwrite(forged, bytes([os.pread(forged, 1, at)[0] ^ 1]), at)
            fcntl.fcntl(forged, fcntl.F_ADD_SEALS, seals | write)
            swap(d, "kvweights", forged)
            start(True, f"a change at {at}, size {size}")
        with d.manager.lock:
            d.manager.store.append(["kvweights", os.memfd_create("two")])
        start(True, "two of a name")
        # another executable, of the same bytes
        other = shutil.copy2(kvdtest.KVD, os.path.join(folder, "kvd"))
        command, d.command = d.command, lambda: [other, *command()[1:]]
        start(True, "another executable")
        start(False, "the same again")
        # no huge pages: nothing is kept
        d.stop(signal.SIGKILL)
        d.options["cpu.huge_pages"] = "never"
        d.start()
        equal(facts(ask(d, 1)), facts(first), "the answer without huge pages")
        equal(packed(d)[-1], True, "packed again without huge pages")
        equal(d.manager.names(), STORED[:2], "the FD store without huge pages")


@limit(600)
def test_other_weights():
    """A model of the same shape and other weights: cold."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        tinygguf.write_model(path, seed=1)
        with Kept(POOL, model=path) as d:
            d.restart(signal.SIGKILL)
            equal(len(notes(d, "warm start")), 1, "warm starts with the same weights")
            time.sleep(4)
            d.restart(signal.SIGKILL)
            equal(packed(d), [True, True, True], "starts with a file that was just written")
            d.restart(signal.SIGKILL)
            equal(packed(d)[-1], not FILES, "the weights of a file that rests are packed")
            tinygguf.write_model(path, seed=2)
            d.restart(signal.SIGKILL)
            assert "another model" in notes(d, "is dropped")[-1], d.log()
            equal(packed(d)[-1], True, "the weights of another model are packed")


def noted_file(d):
    """Of which file the kept image says that it has the fingerprint; None: of none."""
    fd = d.manager.file("kvimage")
    with mmap.mmap(fd, 0) as image:
        note = struct.unpack("<QQQqqQ", image[232:280])
    os.close(fd)
    return note[:5] if note[5] else None


@limit(600)
def test_unchanged_file_is_not_hashed_again():
    """What is noted is the file as it is, and any change of it means hashing again."""
    def stamp():
        st = os.stat(path)
        return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns

    def fingerprint():
        with open(path, "rb") as f:
            right = hashlib.sha256(f.read()).hexdigest()
        equal(d.stats()["model"]["fingerprint"], right, "fingerprint")

    def not_noted(changed, what):
        """A file that changed a moment before it was opened is not noted. On a machine
        that took long to get there it may have rested enough."""
        soon = time.monotonic() - changed < 2
        note = noted_file(d)
        assert note is None or (not soon and note == stamp()), f"the note of {what}: {note}"

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        changed = time.monotonic()
        tinygguf.write_model(path, seed=1)
        with Kept(POOL, model=path) as d:
            not_noted(changed, "a file that was just written")
            fingerprint()
            time.sleep(4)
            d.restart(signal.SIGKILL)
            equal(noted_file(d), stamp(), "the note of a file that rests")
            for sig in KINDS:
                d.restart(sig)
                equal(noted_file(d), stamp(), "the note at the next start")
                fingerprint()
            equal(len(notes(d, "warm start")), 4, "warm starts")
            # the last weight in place, and its times set back: ctime tells
            before = os.stat(path)
            changed = time.monotonic()
            with open(path, "r+b") as f:
                f.seek(-1, os.SEEK_END)
                last = f.read(1)[0]
                f.seek(-1, os.SEEK_END)
                f.write(bytes([last ^ 1]))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            d.restart(signal.SIGKILL)
            assert "another model" in notes(d, "is dropped")[-1], d.log()
            not_noted(changed, "a file that was just changed")
            fingerprint()
            # other times only: hashed, warm, and noted
            os.utime(path)
            time.sleep(4)
            d.restart(signal.SIGKILL)
            equal(len(notes(d, "warm start")), 5, "warm starts")
            equal(noted_file(d), stamp(), "the note of a file that was touched")
            fingerprint()


def held(d):
    found = json.loads(d.kvctl("cache", "ls", "--json").stdout)["prefixes"]
    return [(p["id"], p["domain"], p["tokens"], p["pins"]) for p in found if p["pins"]]


@limit(600)
def test_pins_survive():
    """A public prefix that is held stays so, for others to read."""
    text = prose(200, 7)
    with Kept(POOL) as d:
        d.kvctl("cache", "pin", "--public", "--prefix", text)
        before = held(d)
        pinned = d.stats()["cache"]["blocks_pinned"]
        assert pinned > 0, "nothing is pinned"
        idle(d)
        d.restart(signal.SIGKILL)
        equal(d.stats()["cache"]["blocks_pinned"], pinned, "pinned blocks")
        equal(held(d), before, "prefixes that are held")
        assert d.generate(text, tokens=4)["cached_tokens"] >= 16 * (pinned - 1), "hits"
        d.kvctl("cache", "unpin", "--prefix", text)
        equal(d.stats()["cache"]["blocks_pinned"], 0, "pinned blocks at the end")


@limit(120)
def test_crashes_at_the_start_end():
    """An image with which no start succeeds is given up."""
    with Kept(POOL) as d:
        ask(d, 1)
        idle(d)
        d.restart(signal.SIGKILL)
        d.stop(signal.SIGKILL)
        fd = d.manager.file("kvimage")
        with mmap.mmap(fd, 0) as image:
            # starts that did not succeed; a successful one has set it back
            equal(image[224:232], bytes(8), "failed starts")
            image[224] = 3
        os.close(fd)
        cold(d, "failed")


def test_strangers_are_closed():
    with Kept(POOL, start=False) as d:
        with d.manager.lock:
            d.manager.store.append(["odd", os.memfd_create("odd")])
        d.start()
        equal(len(notes(d, "names that nobody here knows")), 1, "lines about strangers")
        equal(d.manager.names(), STORED, "the FD store")


def test_no_room_in_the_store():
    """Too small a store: it serves all the same, and says that it will be cold."""
    with Kept(POOL, maximum=1) as d:
        equal(len(notes(d, "will not outlive")), 1, "lines")
        ask(d, 1)
        equal(d.manager.names(), [], "the FD store")
        d.restart(signal.SIGKILL)
        equal(ask(d, 1)["cached_tokens"], 0, "hits")


if __name__ == "__main__":
    sys.exit(kvdtest.run(globals()))
