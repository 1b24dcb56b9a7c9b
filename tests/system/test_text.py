#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Text of answers: every piece and every result is valid UTF-8, wherever the answer ends and
whatever bytes the model chooses. The right text is made here from the raw bytes of the tokens
by Python's own decoder, which replaces maximal subparts as Unicode's chapter 3.9 says.
"""
import json
import os
import sys
import tempfile

import tinygguf
from kvdtest import Daemon, equal, run
from library import Client

EMOJIS = "List of emojis: 😀😃😄😁😆😅😂漢字 "
E_DEADLINE, ECANCELED = -4111, -125
IGNORE_EOS = 2


def test_every_end_of_an_answer():
    cut = 0
    with Daemon() as daemon:
        client = Client(daemon)
        _, whole, ids = client.generate(EMOJIS, max_tokens=40, gen_flags=IGNORE_EOS)
        for n in range(1, 41):
            _, text, tokens = client.generate(EMOJIS, max_tokens=n, gen_flags=IGNORE_EOS)
            equal(tokens, ids[:n], f"the first {n} tokens")
            equal(text, client.right_text(tokens), f"the text of {n} tokens")
            assert whole.startswith(text), (n, text)
            cut += client.raw(tokens) != text.encode()
            shown = json.loads(daemon.kvctl("generate", "--raw", "--json", "--ignore-eos",
                                            "--max-tokens", str(n), EMOJIS).stdout)["text"] \
                if n < 8 else text
            equal(shown, text, f"kvctl's text of {n} tokens")
        assert cut > 10, f"only {cut} of 40 answers end inside a character: not a hard prompt"
        client.close()


def test_other_ends():
    with Daemon() as daemon:
        client = Client(daemon)
        _, whole, ids = client.generate(EMOJIS, max_tokens=40, gen_flags=IGNORE_EOS)
        for at in range(1, 30):
            pieces, text, tokens = client.generate(EMOJIS, ECANCELED, cancel_at=at,
                                                   max_tokens=400, gen_flags=IGNORE_EOS)
            equal(len(pieces), at, "pieces before the cancel")
            assert client.right_text(tokens).startswith(text), (at, text)
        for first in {c for c in whole if ord(c) > 0x7f}:
            _, text, _ = client.generate(EMOJIS, max_tokens=40, gen_flags=IGNORE_EOS,
                                         stop=(first,))
            equal(text, whole[:whole.index(first)], "the text before a stop string")
        for ms in range(20, 400, 60):
            _, text, tokens = client.generate(EMOJIS, E_DEADLINE, max_tokens=4000,
                                              gen_flags=IGNORE_EOS, timeout_ms=ms)
            equal(text, client.right_text(tokens), "the text at a deadline")
        client.close()
    n = len(ids)
    for more in (17, 18, 19, 20):
        with Daemon({"scheduler.max_model_len": str(more + 16)}) as daemon:
            client = Client(daemon)
            _, text, tokens = client.generate(EMOJIS, gen_flags=IGNORE_EOS)
            assert 0 < len(tokens) < n + 40
            equal(text, client.right_text(tokens), "the text at the end of the context")
            client.close()


def test_tokens_that_are_bytes():
    """Random bytes: most of them can never become a character."""
    with tempfile.TemporaryDirectory() as folder:
        model = tinygguf.write_model(os.path.join(folder, "bytes.gguf"), tokenizer=True)
        with Daemon(model=model) as daemon:
            client = Client(daemon)
            bad = 0
            for seed in range(30):
                for n in (1, 7, 60):
                    _, text, tokens = client.generate("a", max_tokens=n, temperature=3.0,
                                                      seed=seed, gen_flags=IGNORE_EOS)
                    equal(text, client.right_text(tokens), f"seed {seed}, {n} tokens")
                    bad += text.count("\ufffd")
            assert bad > 500, f"only {bad} bytes that are no characters"
            client.close()


if __name__ == "__main__":
    sys.exit(run(globals()))
