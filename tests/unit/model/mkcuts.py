#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write cuts.txt: where two other implementations cut random strings, for each pre-tokenizer.

usage: python3 -m venv V && V/bin/pip install tokenizers llama-cpp-python==0.3.36
       V/bin/python mkcuts.py [--seed N] [--strings N] > cuts.txt

References, of which neither is made from the other:
  HF tokenizers   the components that each original tokenizer.json names
  llama.cpp       its table by the name in tokenizer.ggml.pre

llama.cpp shows ids, not cuts. So it is given a vocabulary in which every stretch of characters
of a string is a token, and every two neighbouring stretches merge: a piece, however it is
merged, ends as one token, and the tokens are the pieces.

A string on which the references differ is left out and named in a comment: ties between
versions of Unicode, not facts about a family.

  text HEX
  cut FAMILY,... BYTES...        lengths of the pieces
"""
import argparse
import ctypes
import os
import random
import struct
import tempfile

import llama_cpp as lc
import tokenizers as t
from tokenizers import pre_tokenizers as pre

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def digits_first():
    return pre.Sequence([pre.Digits(individual_digits=True),
                         pre.ByteLevel(add_prefix_space=False, use_regex=True)])


def split(digits):
    return pre.Split(t.Regex(WORDS + digits + REST), "isolated")


FAMILIES = {
    "smollm": digits_first(),
    "gpt-2": pre.ByteLevel(add_prefix_space=False, use_regex=True),
    "llama-bpe": split(r"\p{N}{1,3}"),
    "qwen2": split(r"\p{N}"),
    "starcoder": digits_first(),
    "refact": digits_first(),
    "command-r": digits_first(),
}

# What the patterns tell apart, and neighbours that look like it.
LETTERS = "abZ" "\u00e9\u00df\u0130\u4e2d\u0627\u05d0\u02b0\u01c5\U00010400"
DIGITS = "0123459" "\u0663\u00bd\u00b2\u2167\u3007\U0001d7d9"
BLANKS = "    \n\n\n\r\t\v\f" "\u00a0\u0085\u1680\u2009\u2028\u2029\u202f\u205f\u3000"
OTHERS = (".,!-_#(\"'\u2019\u20ac\u0301\u0903\u20dd\u200b\u200d\u180e\ufeff\x01\x1b\x7f"
          "\U0001f600\ue000\ufffd")
ENDINGS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'x", "''s",
           "'\u017f"]


def random_string(rng):
    kinds = [LETTERS, DIGITS, BLANKS, OTHERS]
    out, weights = [], [rng.choice([0, 1, 1, 3]) for _ in kinds]
    if not any(weights):
        weights = [1, 1, 1, 1]
    for _ in range(rng.randint(2, 12)):
        if rng.random() < 0.08:
            out.append(rng.choice(ENDINGS))
            continue
        kind = rng.choices(kinds, weights)[0]
        out.append(rng.choice(kind[:7] if rng.random() < 0.5 else kind))
        while rng.random() < 0.25:
            out.append(out[-1])
    return "".join(out)


# ---- llama.cpp ----

def spelling():
    """Byte-level vocabularies spell each byte as a printable character."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain},
            **{b: chr(0x100 + i) for i, b in enumerate(others)}}


SPELL = spelling()


def spell(text):
    return "".join(SPELL[b] for b in text.encode())


def vocabulary(strings):
    tokens = dict.fromkeys(SPELL.values())
    merges = {}

    def add(left, right):
        merges[left + " " + right] = None
        tokens[left + right] = None

    for char in sorted(set("".join(strings))):
        s = spell(char)
        for i in range(1, len(s)):
            add(s[:i], s[i])
    for string in strings:
        parts = [spell(c) for c in string]
        n = len(parts)
        for a in range(n):
            for c in range(a + 2, n + 1):
                for b in range(a + 1, c):
                    add("".join(parts[a:b]), "".join(parts[b:c]))
    return list(tokens), list(merges)


def string(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path, family, tokens, merges):
    numbers = {"llama.block_count": 1, "llama.context_length": 64,
               "llama.embedding_length": 64, "llama.feed_forward_length": 64,
               "llama.attention.head_count": 1, "llama.vocab_size": len(tokens),
               "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2",
             "tokenizer.ggml.pre": family}
    out = [b"GGUF", struct.pack("<IQQ", 3, 0, len(numbers) + len(texts) + 4)]
    for key, value in texts.items():
        out += [string(key), struct.pack("<I", 8), string(value)]
    for key, value in numbers.items():
        out += [string(key), struct.pack("<II", 4, value)]
    out += [string("llama.attention.layer_norm_rms_epsilon"), struct.pack("<If", 6, 1e-5)]
    for key, values in (("tokens", tokens), ("merges", merges)):
        out += [string("tokenizer.ggml." + key), struct.pack("<IIQ", 9, 8, len(values))]
        out += [string(v) for v in values]
    out += [string("tokenizer.ggml.token_type"), struct.pack("<IIQ", 9, 5, len(tokens)),
            struct.pack("<i", 1) * len(tokens)]
    with open(path, "wb") as f:
        f.write(b"".join(out))


def llama_cuts(family, strings, tokens, merges):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        write_gguf(f.name, family, tokens, merges)
        params = lc.llama_model_default_params()
        params.vocab_only = True
        model = lc.llama_model_load_from_file(f.name.encode(), params)
        if not model:
            raise SystemExit(f"llama.cpp does not load the vocabulary as {family}")
    vocab = lc.llama_model_get_vocab(model)
    cuts = []
    for s in strings:
        data = s.encode()
        ids = (lc.llama_token * (len(data) + 16))()
        n = lc.llama_tokenize(vocab, data, len(data), ids, len(ids), False, False)
        cuts.append([len(tokens[i]) for i in ids[:n]])
    lc.llama_model_free(model)
    return cuts


def hf_cuts(family, strings):
    cuts = []
    for s in strings:
        pieces = FAMILIES[family].pre_tokenize_str(s)
        cuts.append([len(s[a:b].encode()) for _, (a, b) in pieces])
    return cuts


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def quiet(level, text, user):
    pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--strings", type=int, default=220)
    args = parser.parse_args()
    lc.llama_log_set(quiet, None)
    rng = random.Random(args.seed)
    fixed = ["x\n\n10", "a  5", "Price:  100", "x\n\n1. First", "x \u0663",
             "I'll we'LL it'S"]
    strings = list(dict.fromkeys(fixed + [random_string(rng) for _ in range(args.strings)]))
    tokens, merges = vocabulary(strings)
    got = {f: (hf_cuts(f, strings), llama_cuts(f, strings, tokens, merges)) for f in FAMILIES}
    print("# SPDX-License-Identifier: MIT")
    print(f"# Made by mkcuts.py --seed {args.seed} --strings {args.strings}:",
          f"tokenizers {t.__version__} and llama-cpp-python {lc.__version__} agree.")
    for i, s in enumerate(strings):
        groups = {}
        for family, (hf, llama) in got.items():
            if hf[i] == llama[i]:
                groups.setdefault(tuple(hf[i]), []).append(family)
            else:
                print("# differ:", family, s.encode().hex(), *hf[i], "and", *llama[i])
        if groups:
            print("text", s.encode().hex())
        for cut, families in groups.items():
            print("cut", ",".join(families), *cut)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
