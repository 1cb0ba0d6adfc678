"""What the commands on files compute, by NumPy: types, the canonical orders, quantised rows, reading and writing files.

Written from docs/semantics.md; shares no code with the library. Arithmetic is in the accumulator's type (f32, or f64 of
f64 tables), one rounding per operation; a fused multiply-add is exact in f64 and rounded once for f32, and computed in
long double for f64, where the tests use numbers whose products are exact."""
import json
import struct

import numpy as np

NAMES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64,
         "U8": np.uint8}


def write_safetensors(path, tensors, metadata=None, shift=0):
    """tensors: {name: (type name, array)}. `shift` bytes of u8 come first, so that others lie at odd places."""
    if shift:
        tensors = {"shift": ("U8", np.zeros(shift, np.uint8)), **tensors}
    header, at = {}, 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    return {name: np.frombuffer(data[h["data_offsets"][0]:h["data_offsets"][1]], NAMES[h["dtype"]]).reshape(h["shape"])
            for name, h in header.items()}, metadata


def from_bf16(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """Finite f32 to bf16 bits, to nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def fma(a, b, c):
    """f32: the product is exact in f64; the sum is rounded to odd there, so that rounding to f32 is rounding once."""
    if np.asarray(c).dtype == np.float64:
        return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype(np.float64)
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c64 = np.asarray(c, np.float64)
    total = product + c64
    with np.errstate(invalid="ignore"):
        part = total - product
        rest = (product - (total - part)) + (c64 - part)
    bits = total.view(np.int64) if isinstance(total, np.ndarray) else np.array(total).view(np.int64)
    inexact = np.isfinite(total) & (rest != 0) & ((bits & 1) == 0)
    toward = np.where((rest > 0) == (total > 0), 1, -1)
    odd = np.where(inexact, bits + toward, bits).view(np.float64)
    with np.errstate(over="ignore"):
        return odd.astype(np.float32)


def dot(a, b):
    """Canonical dot products of the rows of a and b: 16 lanes, joined by halves."""
    a, b = np.broadcast_arrays(a, b)
    lanes = np.zeros(a.shape[:-1] + (16,), a.dtype)
    for begin in range(0, a.shape[-1], 16):
        width = min(16, a.shape[-1] - begin)
        lanes[..., :width] = fma(a[..., begin:begin + width], b[..., begin:begin + width], lanes[..., :width])
    half = 8
    while half:
        lanes = lanes[..., :half] + lanes[..., half:2 * half]
        half //= 2
    return lanes[..., 0] + lanes.dtype.type(0)


def tree_sum(terms, weights=None):
    """The canonical sum of rows: a tree of fan-in 16."""
    total, count = None, len(terms)
    if count == 0:
        return np.zeros(terms.shape[1:], terms.dtype)
    level, first = terms, True
    while True:
        groups = []
        for begin in range(0, len(level), 16):
            total = np.zeros(terms.shape[1:], terms.dtype)
            for i in range(begin, min(begin + 16, len(level))):
                total = fma(level[i], weights[i], total) if first and weights is not None else total + level[i]
            groups.append(total)
        level, first = groups, False
        if len(level) == 1:
            return level[0] + terms.dtype.type(0)


def nearest(table, query, metric, k, excluded=-1):
    with np.errstate(all="ignore"):
        if metric == "l2":
            gap = table - query
            scores = dot(gap, gap)
        else:
            scores = dot(table, query)
            if metric == "cosine":
                scores = scores / (np.sqrt(dot(query, query)) * np.sqrt(dot(table, table)))
    key = np.where(np.isnan(scores), np.inf, scores if metric == "l2" else -scores)
    order = [row for row in np.lexsort((np.arange(len(table)), key, np.isnan(scores))) if row != excluded]
    return order[:k], scores


def quantize(rows, kind):
    """(packed bytes, what they read as)"""
    rows = rows.astype(np.float32)
    least, most = rows.min(1), rows.max(1)
    if kind == "int8":
        spread = most - least
        scale, bias = (spread / np.float32(255)).astype(np.float32), least
        inverse = np.float32(255) / (spread + np.float32(1e-8))
        q = np.rint((rows - least[:, None]) * inverse[:, None]).astype(np.uint8)
        packed = np.hstack([q, np.stack([scale, bias], 1).astype(np.float32).view(np.uint8).reshape(len(rows), 8)])
    else:
        bias16 = least.astype(np.float16)
        bias = bias16.astype(np.float32)
        scale16 = ((most - bias) / np.float32(15)).astype(np.float16)
        scale16[scale16 == 0] = 1
        scale = scale16.astype(np.float32)
        q = np.clip(np.rint((rows - bias[:, None]) * (np.float32(1) / scale)[:, None]), 0, 15).astype(np.uint8)
        padded = np.pad(q, ((0, 0), (0, q.shape[1] % 2)))
        tail = np.stack([scale16, bias16], 1).view(np.uint8).reshape(len(rows), 4)
        packed = np.hstack([padded[:, 0::2] | (padded[:, 1::2] << 4), tail])
    return packed, fma(q.astype(np.float32), scale[:, None], bias[:, None] + np.zeros_like(rows))
