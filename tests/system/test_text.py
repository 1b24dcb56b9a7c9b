#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Text of answers: every piece and every result is valid UTF-8, wherever the answer ends and
whatever bytes the model chooses. The right text is made here from the raw bytes of the tokens
by Python's own decoder, which replaces maximal subparts as Unicode's chapter 3.9 says.
"""
import codecs
import ctypes
import json
import os
import sys
import tempfile

import kvdtest
import tinygguf
from kvdtest import Daemon, equal, run

LIBRARY = os.path.join(kvdtest.BUILD, "client", "libkvclient.so.0")
EMOJIS = "List of emojis: 😀😃😄😁😆😅😂漢字 "
E_DEADLINE, ECANCELED = -4111, -125
IGNORE_EOS = 2


class ConnectOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("socket_path", ctypes.c_char_p),
                ("client_name", ctypes.c_char_p), ("timeout_ns", ctypes.c_int64),
                ("spin_ns", ctypes.c_int64), ("reconnect_ns", ctypes.c_int64)]


class GenOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("max_tokens", ctypes.c_uint32),
                ("top_k", ctypes.c_uint32), ("temperature", ctypes.c_float),
                ("top_p", ctypes.c_float), ("min_p", ctypes.c_float),
                ("n_stop", ctypes.c_uint32), ("seed", ctypes.c_uint64),
                ("stop", ctypes.POINTER(ctypes.c_char_p)), ("gen_flags", ctypes.c_uint32),
                ("input_flags", ctypes.c_uint32), ("n", ctypes.c_uint32),
                ("priority", ctypes.c_int32), ("timeout_ms", ctypes.c_uint32),
                ("fork_at", ctypes.c_uint32), ("salt", ctypes.c_uint64)]


class Usage(ctypes.Structure):
    _fields_ = [("prompt_tokens", ctypes.c_uint32), ("cached_tokens", ctypes.c_uint32),
                ("generated_tokens", ctypes.c_uint32), ("finish_reason", ctypes.c_uint32),
                ("ttft_ns", ctypes.c_uint64), ("total_ns", ctypes.c_uint64),
                ("detail", ctypes.c_uint64)]


class Result(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("text_len", ctypes.c_size_t),
                ("tokens", ctypes.POINTER(ctypes.c_uint32)),
                ("logprobs", ctypes.POINTER(ctypes.c_float)),
                ("n_tokens", ctypes.c_size_t), ("usage", Usage),
                ("reserved", ctypes.c_uint64 * 4)]


class Piece(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("logprob", ctypes.c_float),
                ("text", ctypes.c_void_p), ("text_len", ctypes.c_size_t)]


PIECE_FN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Piece))


class Client:
    def __init__(self, daemon):
        self.lib = ctypes.CDLL(LIBRARY)
        self.handle = ctypes.c_void_p()
        opts = ConnectOpts(size=ctypes.sizeof(ConnectOpts), socket_path=daemon.socket.encode())
        equal(self.lib.kvc_connect(ctypes.byref(self.handle), ctypes.byref(opts)), 0, "connect")

    def generate(self, prompt, rc=0, cancel_at=0, stop=(), **options):
        """The pieces, the text of the result, its tokens. All is decoded strictly."""
        opts = GenOpts(size=ctypes.sizeof(GenOpts), n_stop=len(stop), **options)
        opts.stop = (ctypes.c_char_p * max(1, len(stop)))(*(s.encode() for s in stop))
        pieces, result = [], Result()

        def on_piece(_data, piece):
            got = piece.contents
            pieces.append(ctypes.string_at(got.text, got.text_len) if got.text_len else b"")
            return len(pieces) == cancel_at

        got = self.lib.kvc_generate_stream(self.handle, prompt.encode(), ctypes.byref(opts),
                                           PIECE_FN(on_piece), None, ctypes.byref(result))
        equal(got, rc, "what the call returns")
        text = ctypes.string_at(result.text, result.text_len)
        tokens = result.tokens[:result.n_tokens]
        self.lib.kvc_result_clear(ctypes.byref(result))
        for piece in pieces:
            piece.decode()
        equal(b"".join(pieces), text, "the pieces together")
        return pieces, text.decode(), tokens

    def raw(self, tokens):
        """Bytes of tokens as DETOKENIZE gives them."""
        room = ctypes.create_string_buffer(65536)
        ids = (ctypes.c_uint32 * max(1, len(tokens)))(*tokens)
        n = self.lib.kvc_detokenize(self.handle, ids, ctypes.c_size_t(len(tokens)),
                                    ctypes.c_uint32(4), room, ctypes.c_size_t(len(room)))
        assert 0 <= n <= len(room), n
        return room.raw[:n]

    def right_text(self, tokens):
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.raw(tokens), False)

    def close(self):
        self.lib.kvc_close(self.handle)


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
