# SPDX-License-Identifier: MIT
"""The structs of <kvclient.h> for ctypes, one for all tests, benchmarks and evaluations."""
import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p, sizeof


class ConnectOpts(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("socket_path", c_char_p),
                ("client_name", c_char_p), ("timeout_ns", c_int64),
                ("spin_ns", c_int64), ("reconnect_ns", c_int64)]


class GenOpts(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("max_tokens", c_uint32),
                ("top_k", c_uint32), ("temperature", c_float),
                ("top_p", c_float), ("min_p", c_float),
                ("n_stop", c_uint32), ("seed", c_uint64),
                ("stop", POINTER(c_char_p)), ("gen_flags", c_uint32),
                ("input_flags", c_uint32), ("n", c_uint32),
                ("priority", c_int32), ("timeout_ms", c_uint32),
                ("fork_at", c_uint32), ("salt", c_uint64)]


class Usage(ctypes.Structure):
    _fields_ = [("prompt_tokens", c_uint32), ("cached_tokens", c_uint32),
                ("generated_tokens", c_uint32), ("finish_reason", c_uint32),
                ("ttft_ns", c_uint64), ("total_ns", c_uint64),
                ("detail", c_uint64)]


class Result(ctypes.Structure):
    _fields_ = [("text", c_void_p), ("text_len", c_size_t),
                ("tokens", POINTER(c_uint32)),
                ("logprobs", POINTER(c_float)),
                ("n_tokens", c_size_t), ("usage", Usage),
                ("reserved", c_uint64 * 4)]


class Piece(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float),
                ("text", c_void_p), ("text_len", c_size_t)]


class Input(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("reserved", c_uint32), ("data", c_void_p),
                ("n", c_size_t)]


class ScoreOpts(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("top", c_uint32),
                ("first", c_uint32), ("reserved", c_uint32), ("tokens", POINTER(c_uint32)),
                ("logprobs", POINTER(c_float)), ("cap", c_size_t),
                ("top_ids", POINTER(c_uint32)), ("top_logprobs", POINTER(c_float)),
                ("top_cap", c_size_t)]


# As the abi suite holds them.
assert sizeof(Usage) == 40 and sizeof(Result) == 112
