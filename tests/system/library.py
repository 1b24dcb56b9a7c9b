# SPDX-License-Identifier: MIT
"""libkvclient by ctypes: what tests want of it that no verb of kvctl shows. Python 3.9,
standard library."""
import codecs
import ctypes
import os

import kvdtest
from kvdtest import equal

LIBRARY = os.path.join(kvdtest.BUILD, "client", "libkvclient.so.0")


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
    def __init__(self, daemon, name=None):
        self.lib = ctypes.CDLL(LIBRARY)
        self.handle = ctypes.c_void_p()
        opts = ConnectOpts(size=ctypes.sizeof(ConnectOpts), socket_path=daemon.socket.encode(),
                           client_name=name and name.encode())
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
