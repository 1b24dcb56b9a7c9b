# SPDX-License-Identifier: MIT
"""The peer of bench_model.py: llama.cpp, by the low-level calls of llama-cpp-python.

usage: peer_llama.py MODEL THREADS FLASH(0|1) CONTEXT EXTRA(0|1)

EXTRA allows the tile registers (AMX) and other repacked weights. On some virtual machines
that show AMX, ggml dies of an illegal instruction at its first tile load.

Reads commands on stdin and answers each with seconds, one line a command:
  prefill N   a prompt of N tokens into an empty context, in one batch
  decode N    N tokens, each fed back, after a prompt of one token
  depth D N   the same on top of D tokens, whose time does not count
  shared D S N   N tokens for each of S sequences, which share their first D
Sampling is an argmax in numpy, as cheap as kvd's own.
"""
import ctypes
import random
import sys
import time

import llama_cpp as ll
import numpy as np

MAX_SEQS = 17


def main():
    path, threads, flash, context, extra = sys.argv[1], *map(int, sys.argv[2:6])
    silent = ll.llama_log_callback(lambda *_: None)  # has to outlive its last use in C
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    model_params = ll.llama_model_default_params()
    if not extra:
        model_params.use_extra_bufts = False
    model = ll.llama_model_load_from_file(path.encode(), model_params)
    params = ll.llama_context_default_params()
    params.n_ctx = context
    params.n_batch = params.n_ubatch = 512
    if context > 1024:
        params.n_seq_max = MAX_SEQS
        if hasattr(params, "kv_unified"):
            params.kv_unified = True  # sequences may share cells
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = bool(flash)
    ctx = ll.llama_init_from_model(model, params)
    assert ctx, "llama.cpp made no context"
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    rng = random.Random(1)

    def clear():
        ll.llama_memory_clear(ll.llama_get_memory(ctx), True)

    def decode(ids):
        for i in range(0, len(ids), params.n_batch):
            part = ids[i:i + params.n_batch]
            array = (ll.llama_token * len(part))(*part)
            assert ll.llama_decode(ctx, ll.llama_batch_get_one(array, len(part))) == 0

    def decode_all(batch, tokens, position):
        """One token of each sequence, in one batch; the next ones."""
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, i
        assert ll.llama_decode(ctx, batch) == 0
        return [int(np.ctypeslib.as_array(ll.llama_get_logits_ith(ctx, i),
                                          shape=(n_vocab,)).argmax())
                for i in range(len(tokens))]

    def some(n):
        return [rng.randrange(1000, 20000) for _ in range(n)]

    def best():
        logits = ll.llama_get_logits_ith(ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(n_vocab,)).argmax())

    print("ready", flush=True)
    for line in sys.stdin:
        what, *more, n = line.split()
        clear()
        if what == "prefill":
            ids = some(int(n))
            begin = time.perf_counter()
            decode(ids)
            best()
        elif what == "shared":
            depth, n_seqs = map(int, more)
            decode(some(depth))
            for i in range(1, n_seqs):
                ll.llama_memory_seq_cp(ll.llama_get_memory(ctx), 0, i, -1, -1)
            batch = ll.llama_batch_init(n_seqs, 0, 1)
            tokens = some(n_seqs)
            begin = time.perf_counter()
            for i in range(int(n)):
                tokens = decode_all(batch, tokens, depth + i)
            ll.llama_batch_free(batch)
        else:
            decode(some(int(more[0])) if what == "depth" else [504])
            token = best()
            begin = time.perf_counter()
            for _ in range(int(n)):
                decode([token])
                token = best()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
