"""Packing, converting and showing tables in files, compared with NumPy. Usage: check_tables.py SHEAF [NAME ...]"""
import io
import json
import os
import re
import shutil
from fractions import Fraction

import numpy as np

import oracle
from harness import WINDOWS, answer, check, main, rng, run, same, small_table


def check_quantize_reports_size_and_error():
    for dim in (37, 64, 1):
        values = small_table(3000, dim)
        np.save("t.npy", values)
        for kind in ("int8", "int4"):
            packed, back = oracle.quantize(values, kind)
            for env in WINDOWS:
                report = answer("quantize", "t.npy", "--to", kind, "-o", "q.safetensors", env=env)
                tensors, metadata = oracle.read_safetensors("q.safetensors")
                same(tensors["table"], packed, f"{kind} {dim}")
                check(metadata == {"sheaf.quantized.table": f"{kind} {dim}"}, f"{metadata}")
            error = np.abs(back.astype(np.float64) - values)
            check(np.isclose(report["error_max"], error.max(), rtol=1e-12) and np.isclose(report["error_rms"], np.sqrt((error**2).mean()), rtol=1e-9), f"{report}")
            check(report["bytes_before"] == values.nbytes and report["bytes_after"] == packed.nbytes, "size")
            for to, dtype in (("f32", np.float32), ("f16", np.float16), ("f64", np.float64)):
                run("dequantize", "q.safetensors", "--to", to, "-o", "back.npy")
                same(np.load("back.npy"), back.astype(dtype), f"back {kind} {to}")
    values[100, 0] = np.nan
    np.save("t.npy", values)
    check(b"row 100 holds nan" in run("quantize", "t.npy", code=1).stderr, "NaN is refused by row")
    check(b"row 100 holds nan" in run("quantize", "t.npy", code=1, env=WINDOWS[1]).stderr, "in every window")
    for kind, largest in (("int8", 3e38), ("int4", 1e6)):  # finite, but scale or bias are not
        values[100, 0], values[7] = 0, [largest] if kind == "int4" else [-largest]
        wide = np.concatenate([values, np.where(np.arange(3000) == 7, largest, 0).astype(np.float32)[:, None]], axis=1)
        np.save("wide.npy", wide)
        for env in WINDOWS:
            text = run("quantize", "wide.npy", "--to", kind, "-o", "w.safetensors", "--json", code=1, env=env).stderr
            check(b"row 7 ranges from" in text and f"which {kind} rows cannot hold".encode() in text, f"{text}")
        check(not os.path.exists("w.safetensors"), "nothing is written of rows that cannot be read back")
    run("quantize", "q.safetensors", code=1)
    run("dequantize", "t.npy", "-o", "back.npy", code=1)
    run("dequantize", "q.safetensors", code=2)


def check_convert_rounds_as_numpy_does():
    values = np.concatenate([rng.standard_normal(5000) * 10.0 ** rng.integers(-12, 8, 5000),
                             np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 6e-8, 2.0**-25, 1 + 2.0**-11 + 2.0**-40])])
    np.save("f64.npy", values)
    for env in WINDOWS:
        for to, dtype in (("f32", np.float32), ("f16", np.float16), ("f64", np.float64)):
            report = answer("convert", "f64.npy", "--to", to, "-o", "out.npy", env=env)
            with np.errstate(over="ignore"):
                wanted = values.astype(dtype)
            same(np.load("out.npy"), wanted, to)
            check(report["overflowed"] == int((np.isinf(wanted) & ~np.isinf(values)).sum()), "overflowed")
    finite = rng.standard_normal((7, 3, 5)).astype(np.float32)
    np.save("f32.npy", finite)
    run("convert", "f32.npy", "--to", "bf16", "-o", "out.safetensors")
    same(oracle.read_safetensors("out.safetensors")[0]["table"], oracle.to_bf16(finite), "bf16")
    run("convert", "out.safetensors:table", "--to", "f32", "-o", "out.npy")
    same(np.load("out.npy"), oracle.from_bf16(oracle.to_bf16(finite)), "and back")
    np.save("i64.npy", np.array([1, -2, 2**31 - 1]))
    run("convert", "i64.npy", "--to", "i32", "-o", "out.npy")
    same(np.load("out.npy"), np.array([1, -2, 2**31 - 1], np.int32), "i32")
    np.save("i64.npy", np.array([2**31]))
    run("convert", "i64.npy", "--to", "i32", "-o", "out.npy", code=1)
    same(np.load("out.npy"), np.array([1, -2, 2**31 - 1], np.int32), "the old file is whole")
    edges = np.array([2**53 + 1, 2**24 + 1, -(2**24 + 1), 2**62 + 2**38 + 1, -(2**62 + 2**38 + 1), 2**63 - 1, -2**63, 2**54 - 1,
                      2**61 + 2**37, 65519, 65520, 2**40, 0, -7], np.int64)
    np.save("i64.npy", edges)
    exact = [Fraction(int(n)) for n in edges]
    for to, dtype in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
        report = answer("convert", "i64.npy", "--to", to, "-o", "out.npy")
        got = np.load("out.npy")
        for number, value in zip(exact, got):  # no neighbour is nearer; halfway the even one
            if np.isinf(value):
                check(to == "f16" and abs(number) >= 65520, f"{to} {number} {value}")
                continue
            gap = abs(Fraction(float(value)) - number)
            with np.errstate(over="ignore"):
                others = [Fraction(float(n)) for n in np.nextafter(value, np.array([np.inf, -np.inf], dtype)) if np.isfinite(n)]
            check(all(gap < abs(o - number) or (gap == abs(o - number) and value.view(f"u{value.itemsize}") % 2 == 0) for o in others), f"{to} {number} {value}")
        check(report["changed"] == sum(np.isinf(g) or Fraction(float(g)) != n for n, g in zip(exact, got)), f"{to} {report}")
    np.save("scalar.npy", np.float32(3))
    run("convert", "scalar.npy", "--to", "f64", "-o", "out.npy")
    same(np.load("out.npy"), np.float64(3), "scalar")
    run("convert", "scalar.npy", code=2)
    np.save("t.npy", small_table(5, 7))
    run("quantize", "t.npy", "--to", "int4", "-o", "q.safetensors")
    run("convert", "q.safetensors", "-o", "copy.safetensors")
    check(oracle.read_safetensors("copy.safetensors")[1] == {"sheaf.quantized.table": "int4 7"}, "the note is kept")
    piped = run("convert", "-", "--to", "f16", "-o", "-", stdin=open("f32.npy", "rb").read()).stdout
    same(np.load(io.BytesIO(piped)), finite.astype(np.float16), "pipes")


def check_show_counts_what_is_there():
    values = small_table(5000, 30)
    values[3, 4], values[9, 0], values[11] = np.nan, -np.inf, 0
    np.save("t.npy", values)
    for env in WINDOWS:
        shown = answer("show", "t.npy", "--blocks", 3, env=env)
        check([shown["nan_rows"], shown["infinite_rows"], shown["zero_rows"]] == [1, 1, 1] and shown["shape"] == [5000, 30], f"{shown}")
        for b, block in enumerate(shown["column_blocks"]):
            part = values[:, 10 * b:10 * b + 10].astype(np.float64)
            part = part[np.isfinite(part)]
            numbers = [block["least"], block["greatest"], block["mean"], block["deviation"]]
            check(np.allclose(numbers, [part.min(), part.max(), part.mean(), part.std()], rtol=1e-9), f"{block}")
        norms = np.sqrt((values.astype(np.float64)**2).sum(1))
        for bin in shown["norms"]:
            check(bin["rows"] == ((norms >= bin["from"]) & (norms < bin["to"]) & (norms > 0)).sum(), f"{bin}")
        check(sum(b["rows"] for b in shown["norms"]) == 4997, "norms of all rows")
    text = run("show", "t.npy", "--rows", 2).stdout.decode()
    check("with NaN:      1, the first is 3" in text and "row 1:" in text and "row 2:" not in text, text)
    oracle.write_safetensors("m.safetensors", {"a": ("F32", values), "b": ("I64", np.arange(4))})
    listed = answer("show", "m.safetensors")["tensors"]
    check([t["name"] for t in listed] == ["a", "b"] and listed[1]["shape"] == [4], f"{listed}")
    check(answer("show", "m.safetensors:b")["column_blocks"][0]["least"] == 0, "integers")
    check(answer("show", "-", stdin=open("t.npy", "rb").read())["nan_rows"] == 1, "stdin")
    np.save("wide.npy", np.full((4, 3), 1e200))
    shown = answer("show", "wide.npy")
    check(shown["column_blocks"][0]["deviation"] is None, "squares beyond f64 are no number of JSON's")
    check([(bin["rows"], bin["from"] > 1e9) for bin in shown["norms"]] == [(4, True)], f"large norms: {shown['norms']}")
    evil = "a\x1b]0;b\x07c\n"
    oracle.write_safetensors("evil.safetensors", {evil: ("F32", values), "b": ("F32", values)})
    text = run("show", "evil.safetensors").stdout
    check(b"a\\x1b]0;b\\x07c\\x0a" in text and b"\x1b" not in text, f"{text}")
    check([t["name"] for t in answer("show", "evil.safetensors")["tensors"]] == sorted([evil, "b"]), "JSON has names as they are")


def check_the_lines_of_the_readme():
    """What a newcomer types: the nearest tokens to a token, and what int4 costs, on a model and its vocabulary."""
    readme = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../README.md")).read()
    values, names = small_table(300, 48), [f"word{i}" for i in range(300)]
    names[77] = "king"
    oracle.write_safetensors("model.safetensors", {"wte.weight": ("F32", values), "ln.bias": ("F32", values[0])})
    json.dump({name: i for i, name in enumerate(names)}, open("vocab.json", "w"))
    lines = re.findall(r"^build/sheaf ((?:nearest|quantize) .*?)(?:  #.*)?$", readme, re.M)
    check(len(lines) == 2, f"{lines}")
    order, _ = oracle.nearest(values, values[77], "cosine", 10, 77)
    text = run(*lines[0].split()).stdout.decode()
    found = [line.split() for line in text.strip().split("\n")[2:]]
    check([(int(f[1]), f[3]) for f in found] == [(row, names[row]) for row in order], text)
    text = run(*lines[1].split()).stdout.decode()
    check("times smaller" in text and "error   rms" in text and os.path.exists("wte-int4.safetensors"), text)


def check_verify_lists_every_case():
    vectors = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors")
    one = os.fsencode(os.path.join(vectors, min(n for n in os.listdir(vectors) if n.endswith(".safetensors"))))
    os.mkdir("cases")
    for name in (b"caf\xe9\x1b.safetensors", b"plain.safetensors"):
        shutil.copy(one, os.path.join(b"cases", name))
    told = answer("verify", "cases")
    check(told["passed"] == 2 and [c["case"] for c in told["cases"]] == ["caf\ufffd\x1b.safetensors", "plain.safetensors"], f"{told}")
    text = run("verify", "cases", "--verbose").stdout
    check(b"caf\\xe9\\x1b.safetensors" in text and b"\x1b" not in text, f"{text}")


main(globals())
