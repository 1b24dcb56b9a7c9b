# SPDX-License-Identifier: MIT
"""The part of libkvclient that the evaluation needs, by ctypes: an ordinary client."""
import ctypes
from ctypes import byref, c_char_p, c_float, c_size_t, c_uint32, c_void_p, sizeof

from structs import ConnectOpts, GenOpts, Input, Result, ScoreOpts

INPUT_TOKENS, INPUT_TEXT = 1, 2
TOP_ALL = 0xFFFFFFFF
IGNORE_EOS = 1 << 1


class Answer:
    """What a GENERATE gave: text, tokens, and the daemon's own times."""

    def __init__(self, result):
        self.text = ctypes.string_at(result.text, result.text_len).decode(
            "utf-8", "replace") if result.text_len else ""
        self.tokens = result.tokens[:result.n_tokens] if result.n_tokens else []
        self.ttft_s = result.usage.ttft_ns / 1e9
        self.total_s = result.usage.total_ns / 1e9


class Client:
    """A connection. Calls block, and may come from several threads."""

    def __init__(self, library, socket, n_vocab):
        self.lib = ctypes.CDLL(library)
        self.lib.kvc_errmsg.restype = c_char_p
        self.lib.kvc_errmsg.argtypes = []
        self.lib.kvc_close.argtypes = [c_void_p]
        self.lib.kvc_close.restype = None
        self.lib.kvc_result_clear.restype = None
        self.n_vocab = n_vocab
        self.client = c_void_p()
        opts = ConnectOpts(sizeof(ConnectOpts), socket.encode(), b"eval")
        self.check(self.lib.kvc_connect(byref(self.client), byref(opts)))

    def close(self):
        self.lib.kvc_close(self.client)

    def check(self, rc):
        if rc < 0:
            raise RuntimeError(self.lib.kvc_errmsg().decode() or f"error {rc}")
        return rc

    @staticmethod
    def input(what):
        """Text, or a list of token ids. Return: struct kvc_input and what it points to."""
        if isinstance(what, str):
            data = what.encode()
            return Input(INPUT_TEXT, 0, ctypes.cast(c_char_p(data), c_void_p), len(data)), data
        data = (c_uint32 * len(what))(*what)
        return Input(INPUT_TOKENS, 0, ctypes.cast(data, c_void_p), len(what)), data

    def tokenize(self, text):
        source, _keep = self.input(text)
        cap = len(text.encode()) + 16
        ids = (c_uint32 * cap)()
        n = self.check(self.lib.kvc_tokenize(self.client, byref(source), 0, ids,
                                             c_size_t(cap)))
        return ids[:n]

    def generate(self, prompt, max_tokens, ignore_eos=False, stop=()):
        source, _keep = self.input(prompt)
        stops = (c_char_p * max(1, len(stop)))(*[s.encode() for s in stop])
        opts = GenOpts(size=sizeof(GenOpts), max_tokens=max_tokens, n_stop=len(stop),
                       stop=stops, gen_flags=IGNORE_EOS if ignore_eos else 0)
        result = Result()
        rc = self.lib.kvc_generate_input(self.client, byref(source), byref(opts), None, None,
                              byref(result))
        try:
            self.check(rc)
            return Answer(result)
        finally:
            self.lib.kvc_result_clear(byref(result))

    def score(self, tokens):
        """Logprob of each token given those before; the first is 0."""
        source, _keep = self.input(tokens)
        out = (c_float * len(tokens))()
        self.check(self.lib.kvc_score(self.client, byref(source), 0, None, out,
                                      c_size_t(len(tokens)), None))
        return list(out)

    def likeliest(self, tokens, first):
        """The likeliest token after each position from `first` on."""
        n = len(tokens) - first
        source, _keep = self.input(tokens)
        ids, logprobs = (c_uint32 * n)(), (c_float * n)()
        opts = ScoreOpts(size=sizeof(ScoreOpts), top=1, first=first, cap=len(tokens),
                         top_ids=ids, top_logprobs=logprobs, top_cap=n)
        self.check(self.lib.kvc_score_top(self.client, byref(source), byref(opts), None))
        return list(ids)

    def next_logprobs(self, tokens, wanted):
        """Logprobs that the wanted tokens come next."""
        source, _keep = self.input(tokens)
        row = (c_float * self.n_vocab)()
        opts = ScoreOpts(size=sizeof(ScoreOpts), top=TOP_ALL, first=len(tokens) - 1,
                         cap=len(tokens), top_logprobs=row, top_cap=self.n_vocab)
        self.check(self.lib.kvc_score_top(self.client, byref(source), byref(opts), None))
        return [row[t] for t in wanted]
