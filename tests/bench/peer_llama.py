# SPDX-License-Identifier: MIT
"""The peer of bench_model.py: llama.cpp, by the low-level calls of llama-cpp-python.

usage: peer_llama.py MODEL THREADS FLASH(0|1) CONTEXT EXTRA(0|1)

EXTRA allows the tile registers (AMX) and other repacked weights. On some virtual machines
that show AMX, ggml dies of an illegal instruction at its first tile load.

Reads commands on stdin and answers each with seconds, one line a command:
  prefill N   a prompt of N tokens into an empty context, in one batch
  decode N    N tokens, each fed back, after a prompt of one token
Sampling is an argmax in numpy, as cheap as kvd's own.
"""
import ctypes
import random
import sys
import time

import llama_cpp as ll
import numpy as np


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
        array = (ll.llama_token * len(ids))(*ids)
        assert ll.llama_decode(ctx, ll.llama_batch_get_one(array, len(ids))) == 0

    def best():
        logits = ll.llama_get_logits_ith(ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(n_vocab,)).argmax())

    print("ready", flush=True)
    for line in sys.stdin:
        what, n = line.split()
        clear()
        if what == "prefill":
            ids = [rng.randrange(1000, 20000) for _ in range(int(n))]
            begin = time.perf_counter()
            decode(ids)
            best()
        else:
            decode([504])
            token = best()
            begin = time.perf_counter()
            for _ in range(int(n)):
                decode([token])
                token = best()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
