# SPDX-License-Identifier: MIT
"""libkvclient by ctypes: what tests want of it that no verb of kvctl shows. Python 3.9,
standard library."""
import codecs
import ctypes
import os

import kvdtest
from kvdtest import equal
from structs import ConnectOpts, GenOpts, Piece, Result

LIBRARY = os.path.join(kvdtest.BUILD, "client", "libkvclient.so.0")
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
