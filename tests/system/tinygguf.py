# SPDX-License-Identifier: MIT
"""Model files with random weights: of any shape, small enough for thousands of requests.

Architecture `llama`, all matrices F32. Without a tokenizer a daemon serves token ids only;
with one, text is bytes and a few merges. The weights follow from the seed. Python 3.9, standard library.
"""
import array
import random
import struct

U32, F32, STRING, ARRAY = 4, 6, 8, 9
ALIGN = 32


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    head = text(key) + struct.pack("<I", kind)
    return head + (text(value) if kind == STRING else
                   struct.pack("<I" if kind == U32 else "<f", value))


def strings(key, values):
    return (text(key) + struct.pack("<IIQ", ARRAY, STRING, len(values)) +
            b"".join(text(v) for v in values))


def spelled_bytes():
    """The character that stands for each byte in vocabularies of this kind."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


SPECIALS = ("<|im_start|>", "<|im_end|>")
MERGES = ("a b", "ab c", "c a")
TEMPLATE = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + "
            "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
            "{{ '<|im_start|>assistant\\n' }}{% endif %}")
N_TEXT_VOCAB = 256 + len(MERGES) + len(SPECIALS)


def tokenizer_pairs():
    tokens = spelled_bytes() + [m.replace(" ", "") for m in MERGES] + list(SPECIALS)
    types = [1] * (256 + len(MERGES)) + [3] * len(SPECIALS)
    return [
        pair("tokenizer.ggml.model", STRING, "gpt2"),
        pair("tokenizer.ggml.pre", STRING, "gpt-2"),
        strings("tokenizer.ggml.tokens", tokens),
        text("tokenizer.ggml.token_type") +
        struct.pack(f"<IIQ{len(types)}i", ARRAY, 5, len(types), *types),
        strings("tokenizer.ggml.merges", MERGES),
        pair("tokenizer.ggml.eos_token_id", U32, len(tokens) - 1),
        pair("tokenizer.chat_template", STRING, TEMPLATE),
    ]


def write_model(path, head_dim=64, n_heads=4, n_kv_heads=2, n_layers=2, d_model=64, d_ff=96,
                n_vocab=96, context=1024, seed=1, sharpness=1.0, name=None,
                tokenizer=False):
    """Write a model; @sharpness multiplies the scores of its attention: the sharper, the
    more it suffers from keys that are not exact. @tokenizer: take text; @n_vocab follows."""
    if tokenizer:
        n_vocab = N_TEXT_VOCAB
    rng = random.Random(seed)

    def matrix(rows, columns, scale=1.0):
        limit = scale * (3.0 / columns) ** 0.5
        return array.array("f", (rng.uniform(-limit, limit) for _ in range(rows * columns)))

    ones = array.array("f", [1.0] * d_model)
    heads, kv = n_heads * head_dim, n_kv_heads * head_dim
    tensors = [("token_embd", (d_model, n_vocab), matrix(n_vocab, d_model, d_model ** 0.5))]
    for i in range(n_layers):
        tensors += [
            (f"blk.{i}.attn_norm", (d_model,), ones),
            (f"blk.{i}.attn_q", (d_model, heads), matrix(heads, d_model, 2.0 * sharpness)),
            (f"blk.{i}.attn_k", (d_model, kv), matrix(kv, d_model, 2.0)),
            (f"blk.{i}.attn_v", (d_model, kv), matrix(kv, d_model)),
            (f"blk.{i}.attn_output", (heads, d_model), matrix(d_model, heads)),
            (f"blk.{i}.ffn_norm", (d_model,), ones),
            (f"blk.{i}.ffn_gate", (d_model, d_ff), matrix(d_ff, d_model)),
            (f"blk.{i}.ffn_up", (d_model, d_ff), matrix(d_ff, d_model)),
            (f"blk.{i}.ffn_down", (d_ff, d_model), matrix(d_model, d_ff)),
        ]
    tensors += [("output_norm", (d_model,), ones),
                ("output", (d_model, n_vocab), matrix(n_vocab, d_model, 2.0))]
    pairs = [
        pair("general.architecture", STRING, "llama"),
        pair("general.name", STRING, name or f"tiny {head_dim}"),
        pair("general.alignment", U32, ALIGN),
        pair("llama.block_count", U32, n_layers),
        pair("llama.context_length", U32, context),
        pair("llama.embedding_length", U32, d_model),
        pair("llama.feed_forward_length", U32, d_ff),
        pair("llama.vocab_size", U32, n_vocab),
        pair("llama.attention.head_count", U32, n_heads),
        pair("llama.attention.head_count_kv", U32, n_kv_heads),
        pair("llama.attention.key_length", U32, head_dim),
        pair("llama.attention.value_length", U32, head_dim),
        pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        pair("llama.rope.dimension_count", U32, head_dim),
        pair("llama.rope.freq_base", F32, 10000.0),
        *(tokenizer_pairs() if tokenizer else [pair("tokenizer.ggml.model", STRING, "none")]),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data = b""
    for name, shape, values in tensors:
        head += text(name + ".weight") + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 0, len(data))
        data += values.tobytes()
        data += bytes(-len(data) % ALIGN)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN) + data)
    return path
