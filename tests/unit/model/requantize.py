#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test program on the default model in another weight type.

requantize.py [--reference] TYPE PROGRAM [ARGUMENT...]: dequantizes every matrix of
$KVD_MODEL by the PyPI package gguf, quantizes it to TYPE (F32, F16, BF16, Q4_0, Q4_1, Q5_0,
Q5_1, Q8_0), and runs the program with KVD_MODEL naming the result. With --reference its
last argument is one file more: what the package makes of the quantized matrices, as F32.
Exits with 77 where gguf or the model is missing. An independent writer, quantizer and
dequantizer, so what the loader makes of its files counts.
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


def requantize(source, target, kind, then=None):
    """Matrices of the source in another type, and from there in the one after."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, data)
        else:
            data = gguf.quants.quantize(data, kind)
            if then is not None:
                data = gguf.quants.quantize(gguf.quants.dequantize(data, kind), then)
            writer.add_tensor(tensor.name, data, raw_dtype=kind if then is None else then)
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
    args = sys.argv[1:]
    reference = args[0] == "--reference"
    kind, *command = args[1:] if reference else args
    kind = gguf.GGMLQuantizationType[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        requantize(model, path, kind)
        if reference:
            command.append(os.path.join(folder, "reference.gguf"))
            requantize(model, command[-1], kind, gguf.GGMLQuantizationType.F32)
        return subprocess.call(command, env={**os.environ, "KVD_MODEL": path})


if __name__ == "__main__":
    sys.exit(main())
