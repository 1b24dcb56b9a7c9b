#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test program on the default model in another weight type.

requantize.py TYPE PROGRAM [ARGUMENT...]: dequantizes every matrix of $KVD_MODEL by the
PyPI package gguf, quantizes it to TYPE (F32, F16, BF16, Q4_0, Q5_0, Q5_1, Q8_0), and runs
the program with KVD_MODEL naming the result. Exits with 77 where gguf or the model is
missing. An independent writer and quantizer, so what the loader makes of its files counts.
"""
import os
import subprocess
import sys
import tempfile

try:
    import gguf
except ImportError:
    print("skipped: no Python package gguf")
    sys.exit(77)


def copy_metadata(reader, writer):
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)


def requantize(source, target, kind):
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, data)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(data, kind),
                              raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    model = os.environ.get(
        "KVD_MODEL", cache + "/kvd/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(model):
        print("skipped: no", model)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        requantize(model, path, gguf.GGMLQuantizationType[sys.argv[1]])
        return subprocess.call(sys.argv[2:], env={**os.environ, "KVD_MODEL": path})


if __name__ == "__main__":
    sys.exit(main())
