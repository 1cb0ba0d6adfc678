"""The commands on files, one group of checks after another. Usage: check_commands.py SHEAF [NAME ...]"""
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import oracle

SHEAF = os.path.abspath(sys.argv[1])
QUICK = os.environ.get("SHEAF_TEST_QUICK", "0") != "0"
failures = 0
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait must not spin beside other tests


def fail(text):
    global failures
    failures += 1
    print("FAILED:", inspect.stack()[2].function, text)


def check(condition, text):
    if not condition:
        fail(text)


def run(*words, code=0, stdin=None, env=None, **more):
    done = subprocess.run([SHEAF, *map(str, words)], input=stdin, capture_output=True,
                          env={**os.environ, **(env or {})}, **more)
    if done.returncode != code:
        fail(f"{' '.join(map(str, words))}: exit code {done.returncode}, not {code}: {done.stderr[-300:]}")
    if code and done.stderr.count(b"\n") != 1:
        fail(f"{' '.join(map(str, words))}: not one line on stderr: {done.stderr!r}")
    return done


def answer(*words, **more):
    return json.loads(run(*words, "--json", **more).stdout)


def same(got, wanted, what):
    got, wanted = np.asarray(got), np.asarray(wanted)
    equal = got.shape == wanted.shape and got.dtype == wanted.dtype
    if equal and got.dtype.kind == "f":
        equal = np.array_equal(got.view(f"u{got.itemsize}")[~np.isnan(got)], wanted.view(f"u{got.itemsize}")[~np.isnan(wanted)])
    elif equal:
        equal = np.array_equal(got, wanted)
    check(equal, f"{what}: {got.dtype}{got.shape} differs from {wanted.dtype}{wanted.shape}")


rng = np.random.default_rng(20261115)
WINDOWS = [None, {"SHEAF_TEST_WINDOW": "3000"}]  # whole, and in many windows and blocks


def small_table(rows=200, dim=37, dtype=np.float32):
    return rng.standard_normal((rows, dim)).astype(dtype)


# ---- nearest ---------------------------------------------------------------------------------------------------

def check_nearest_matches_numpy_to_the_exact_order():
    plain = rng.standard_normal((500, 50)).astype(np.float32)
    plain[17] = 0
    plain[30, 3] = np.nan
    plain[40] = plain[41]
    files = {"f32.npy": plain, "f64.npy": rng.integers(-50, 50, (300, 33)).astype(np.float64) / 8,
             "f16.npy": plain.astype(np.float16)}
    for name, table in files.items():
        np.save(name, table)
    oracle.write_safetensors("bf16.safetensors", {"w": ("BF16", oracle.to_bf16(rng.standard_normal((400, 48))))}, shift=3)
    tables = {name: table.astype(np.float64 if table.dtype == np.float64 else np.float32) for name, table in files.items()}
    tables["bf16.safetensors:w"] = oracle.from_bf16(oracle.read_safetensors("bf16.safetensors")[0]["w"])
    finite = plain[np.isfinite(plain).all(1)]
    np.save("finite.npy", finite)
    for kind in ("int8", "int4"):
        run("quantize", "finite.npy", "--to", kind, "-o", f"{kind}.safetensors")
        packed, values = oracle.quantize(finite, kind)
        same(oracle.read_safetensors(f"{kind}.safetensors")[0]["table"], packed, kind)
        tables[f"{kind}.safetensors"] = values
    for name, table in tables.items():
        for metric in ("cosine", "dot", "l2"):
            for env in WINDOWS:
                order, scores = oracle.nearest(table, table[42], metric, 25, 42)
                got = answer("nearest", name, "--row", 42, "-k", 25, "--metric", metric, env=env)["nearest"]
                check([g["row"] for g in got] == list(order), f"{name} {metric}: order")
                wanted = [None if np.isnan(scores[r]) else float(scores[r]) for r in order]
                check([g["score"] for g in got] == wanted, f"{name} {metric}: scores")


def check_nearest_by_query_name_and_isa():
    table = small_table(100, 16)
    np.save("t.npy", table)
    np.save("q.npy", table[3].astype(np.float64))
    order, _ = oracle.nearest(table, table[3], "cosine", 4)
    rows = [n["row"] for n in answer("nearest", "t.npy", "--query", "q.npy", "-k", 4)["nearest"]]
    check(rows == list(order) and rows[0] == 3, "by query")
    open("names.txt", "w").write("".join(f"word{i}\n" for i in range(100)))
    json.dump({"model": {"vocab": {f"word{i}": i for i in range(100)}}}, open("tokenizer.json", "w"))
    json.dump([f"word{i}" for i in range(100)], open("list.json", "w"))
    for names in ("names.txt", "tokenizer.json", "list.json"):
        got = answer("nearest", "t.npy", "--row", "word3", "--names", names, "-k", 2)
        check(got["row"] == 3 and got["nearest"][0]["name"] == f"word{order[1]}", names)
        run("nearest", "t.npy", "--row", "nobody", "--names", names, code=1)
    text = run("nearest", "t.npy", "--row", 3, "-k", 2, "--names", "names.txt").stdout.decode()
    check(f"word{order[1]}" in text, text)
    for isa in ("scalar", "avx2", "avx512"):
        for threads in (1, 3):
            again = answer("nearest", "t.npy", "--row", 3, "--threads", threads, env={"SHEAF_ISA": isa})
            check(again == answer("nearest", "t.npy", "--row", 3), f"{isa} {threads}")
    run("nearest", "t.npy", "--row", 100, code=1)
    run("nearest", "t.npy", "--row", -1, code=1)
    run("nearest", "t.npy", "--row", "cat", code=1)
    run("nearest", "t.npy", code=2)
    run("nearest", "t.npy", "--row", 1, "-k", 0, code=2)
    run("nearest", "t.npy", "--row", 1, "--metric", "l3", code=2)
    np.save("short.npy", np.zeros(3, np.float32))
    run("nearest", "t.npy", "--query", "short.npy", code=1)
    open("broken.json", "w").write('{"a": ')
    run("nearest", "t.npy", "--row", 1, "--names", "broken.json", code=1)
    check(len(answer("nearest", "t.npy", "--row", 0, "-k", 1000)["nearest"]) == 99, "all others")


# ---- lookup, bag, segment -----------------------------------------------------------------------------------------

def check_lookup_forward_and_backward():
    table = small_table()
    np.save("t.npy", table)
    indices = rng.integers(0, 200, (9, 4)).astype(np.int32)
    indices[2, 1], indices[3, 3], indices[5, 0] = -7, 200, 11
    np.save("i.npy", indices)
    flat = indices.ravel()
    good = (flat >= 0) & (flat < 200) & (flat != 11)
    wanted = np.zeros((36, 37), np.float32)
    wanted[good] = table[flat[good]]
    grads = rng.standard_normal((9, 4, 37)).astype(np.float32)
    np.save("g.npy", grads)
    backward = np.zeros_like(table)
    for row in range(200):
        backward[row] = oracle.tree_sum(grads.reshape(36, 37)[good & (flat == row)])
    for env in WINDOWS:
        report = answer("lookup", "t.npy", "i.npy", "--padding", 11, "-o", "out.npy", env=env)
        check(report["bad_indices"] == 2 and report["first_bad_position"] == 9, "report")
        same(np.load("out.npy"), wanted.reshape(9, 4, 37), "forward")
        run("lookup", "t.npy", "i.npy", "--padding", 11, "--grad", "g.npy", "-o", "grad.safetensors", env=env)
        same(oracle.read_safetensors("grad.safetensors")[0]["grad"], backward, "backward")
    done = run("lookup", "t.npy", "i.npy", "--bad-index", "error", "-o", "out.npy", code=1)
    check(b"-7 at position 9 is outside 0..199; 2 such entries" in done.stderr, done.stderr)
    piped = run("lookup", "-", "3,1,3", "-o", "-", stdin=open("t.npy", "rb").read()).stdout
    same(np.load(io.BytesIO(piped)), table[[3, 1, 3]], "pipes")
    values = answer("lookup", "t.npy", "5")["values"]
    same(np.array(values, np.float32), table[[5]], "printed JSON")
    text = run("lookup", "t.npy", "5").stdout.decode().split()
    same(np.array(text, np.float32), table[5], "printed text")
    same(np.array(answer("lookup", "t.npy", "i.npy", "--threads", 3)["shape"]), np.array([9, 4, 37]), "shape")
    run("lookup", "t.npy", "1,x", code=1)
    run("lookup", "t.npy", "1", "--padding", 200, code=1)
    run("lookup", "t.npy", "1", "-o", "out.txt", code=2)
    run("lookup", "t.npy", "t.npy", code=1)
    run("lookup", "t.npy", "i.npy", "--grad", "t.npy", code=1)
    run("lookup", "t.npy", "1", "--device", "tpu", code=2)


def check_lookup_of_every_type():
    values = small_table(64, 24)
    oracle.write_safetensors("all.safetensors", {
        "f16": ("F16", values.astype(np.float16)), "f64": ("F64", values.astype(np.float64)),
        "bf16": ("BF16", oracle.to_bf16(values)), "f32": ("F32", values)}, shift=1)
    for name, wanted in (("f16", values.astype(np.float16)), ("f64", values.astype(np.float64)), ("f32", values)):
        run("lookup", f"all.safetensors:{name}", "63,0,7", "-o", "out.npy")
        same(np.load("out.npy"), wanted[[63, 0, 7]], name)
    run("lookup", "all.safetensors:bf16", "63,0,7", "-o", "out.npy")
    same(np.load("out.npy").view(np.uint16), oracle.to_bf16(values)[[63, 0, 7]], "bf16")
    np.save("v.npy", values)
    for kind in ("int8", "int4"):
        run("quantize", "v.npy", "--to", kind, "-o", "q.npy")
        for words in (["q.npy", "63,0,7", "--as", kind],):
            run("lookup", *words, "-o", "out.npy")
            same(np.load("out.npy"), oracle.quantize(values, kind)[1][[63, 0, 7]], kind)
    run("lookup", "q.npy", "1", code=1)
    run("lookup", "q.npy", "1", "--as", "int4", "--dim", 5, code=1)
    run("lookup", "all.safetensors:shift", "1", code=1)
    check(b"all.safetensors:f64" in run("lookup", "all.safetensors", "1", code=1).stderr, "the largest is named")
    check(b"no tensor 'nobody'" in run("lookup", "all.safetensors:nobody", "1", code=1).stderr, "missing tensor")
    os.rename("all.safetensors", "part-1.safetensors")
    json.dump({"metadata": {"total_size": 1}, "weight_map": {"f32": "part-1.safetensors"}}, open("m.safetensors.index.json", "w"))
    run("lookup", "m.safetensors.index.json:f32", "3", "-o", "out.npy")
    same(np.load("out.npy"), values[[3]], "by index")
    run("lookup", "m.safetensors.index.json:f16", "3", code=1)
    run("lookup", "m.safetensors.index.json", "3", code=1)


def bags_of(offsets, count):
    ends = list(offsets[1:]) + [count]
    return [list(range(a, b)) for a, b in zip(offsets, ends)]


def check_bags_forward_and_backward():
    table = small_table()
    np.save("t.npy", table)
    indices = rng.integers(0, 200, 400)
    indices[7], indices[100] = 999, -1
    offsets = np.array([0, 0, 3, 50, 51, 351, 400], np.int32)
    weights = rng.standard_normal(400).astype(np.float32)
    grads = rng.standard_normal((7, 37)).astype(np.float32)
    for name, array in (("i.npy", indices), ("o.npy", offsets), ("w.npy", weights), ("g.npy", grads)):
        np.save(name, array)
    good = (indices >= 0) & (indices < 200)
    rows = np.where(good[:, None], table[np.where(good, indices, 0)], 0).astype(np.float32)
    bags = bags_of(offsets, 400)
    counts = np.array([good[bag].sum() for bag in bags])
    # A skipped entry keeps its place; adding +0 to a sum that started at +0 changes nothing.
    sums = np.array([oracle.tree_sum(rows[bag]) for bag in bags])
    weighted = np.array([oracle.tree_sum(rows[bag], np.where(good, weights, 0)[bag]) for bag in bags]).astype(np.float32)
    with np.errstate(all="ignore"):
        means = np.where(counts[:, None] > 0, sums / counts[:, None].astype(np.float32), 0).astype(np.float32)
    maxima = np.array([table[indices[[k for k in bag if good[k]]]].max(0) if counts[b] else np.zeros(37) for b, bag in enumerate(bags)], np.float32)
    bag_of = np.concatenate([np.full(len(bag), b, np.int64) for b, bag in enumerate(bags)])
    counted = np.where(good, weights, 0).astype(np.float32)
    divisors = np.array([oracle.tree_sum(counted[bag][:, None])[0] if bag else 0 for bag in bags], np.float32)
    sum_grad, mean_grad, max_grad, weighted_sum_grad, weighted_mean_grad = (np.zeros_like(table) for _ in range(5))
    for row in range(200):
        entries = np.flatnonzero(good & (indices == row))
        sum_grad[row] = oracle.tree_sum(grads[bag_of[entries]])
        share = (np.float32(1) / counts[bag_of[entries]].astype(np.float32)).astype(np.float32)
        mean_grad[row] = oracle.tree_sum(grads[bag_of[entries]], share)
        weighted_sum_grad[row] = oracle.tree_sum(grads[bag_of[entries]], weights[entries])
        share = (weights[entries] / divisors[bag_of[entries]]).astype(np.float32)
        weighted_mean_grad[row] = oracle.tree_sum(grads[bag_of[entries]], share)
    terms = {}
    for b, bag in enumerate(bags):
        kept = [k for k in bag if good[k]]
        for d in range(37) if kept else []:
            first = kept[int(np.argmax(table[indices[kept], d]))]
            terms.setdefault((indices[first], d), []).append(grads[b, d])
    for cell, values in terms.items():
        max_grad[cell] = oracle.tree_sum(np.array(values, np.float32)[:, None])[0]
    common = ["bag", "t.npy", "i.npy", "--offsets", "o.npy"]
    for env in WINDOWS:
        for words, wanted in ((["--mode", "sum"], sums), (["--mode", "mean"], means), (["--mode", "max"], maxima),
                              (["--weights", "w.npy"], weighted), (["--grad", "g.npy"], sum_grad),
                              (["--mode", "mean", "--grad", "g.npy"], mean_grad), (["--mode", "max", "--grad", "g.npy"], max_grad),
                              (["--weights", "w.npy", "--grad", "g.npy"], weighted_sum_grad),
                              (["--mode", "mean", "--weights", "w.npy", "--grad", "g.npy"], weighted_mean_grad)):
            run(*common, *words, "-o", "out.npy", env=env)
            same(np.load("out.npy"), wanted, f"{words} {env}")
    np.save("m.npy", rng.integers(0, 200, (11, 5)))
    run("bag", "t.npy", "m.npy", "-o", "out.npy")
    same(np.load("out.npy"), np.array([oracle.tree_sum(table[row]) for row in np.load("m.npy")]), "matrix")
    run("bag", "t.npy", "i.npy", code=2)
    np.save("bad.npy", np.array([0, 5, 3]))
    check(b"position 1" in run("bag", "t.npy", "i.npy", "--offsets", "bad.npy", code=1).stderr, "offsets")
    np.save("bad.npy", np.array([1, 5]))
    run("bag", "t.npy", "i.npy", "--offsets", "bad.npy", code=1)
    run("bag", "t.npy", "i.npy", "--offsets", "o.npy", "--weights", "o.npy", code=1)
    run(*common, "--mode", "max", "--weights", "w.npy", code=1)
    np.save("t64.npy", table.astype(np.float64))
    run("bag", "t64.npy", "i.npy", "--offsets", "o.npy", "--weights", "w.npy", code=1)


def check_segments_forward_and_backward():
    data = rng.integers(-8, 9, (300, 19)).astype(np.float32) / 4
    np.save("x.npy", data)
    for sort in (True, False):
        ids = rng.integers(0, 12, 300)
        ids[ids == 5] = 6  # an empty one
        ids = np.sort(ids) if sort else ids
        if not sort:
            ids[4], ids[250] = -3, 99
        np.save("s.npy", ids)
        groups = [np.flatnonzero(ids == s) for s in range(12)]
        grads = rng.standard_normal((12, 19)).astype(np.float32)
        np.save("g.npy", grads)
        wanted = {"sum": np.array([oracle.tree_sum(data[g]) for g in groups])}
        with np.errstate(all="ignore"):
            wanted["mean"] = np.array([oracle.tree_sum(data[g]) / np.float32(len(g)) if len(g) else np.zeros(19) for g in groups], np.float32)
        wanted["max"] = np.array([data[g].max(0) if len(g) else np.zeros(19) for g in groups], np.float32)
        wanted["min"] = np.array([data[g].min(0) if len(g) else np.zeros(19) for g in groups], np.float32)
        wanted["prod"] = np.array([product(data[g]) for g in groups], np.float32)
        backward = {mode: np.zeros_like(data) for mode in ("sum", "mean", "max", "min", "max split", "min split")}
        for s, g in enumerate(groups):
            if not len(g):
                continue
            backward["sum"][g] = grads[s]
            backward["mean"][g] = grads[s] / np.float32(len(g))
            for mode, first, extreme in (("max", np.argmax, np.max), ("min", np.argmin, np.min)):
                backward[mode][g[first(data[g], 0)], np.arange(19)] = grads[s]
                equal = data[g] == extreme(data[g], 0)
                backward[f"{mode} split"][g] = np.where(equal, grads[s] / equal.sum(0).astype(np.float32), 0)
        for env in WINDOWS:
            for mode, answer_of in wanted.items():
                run("segment", "x.npy", "s.npy", "--mode", mode, "--segments", 12, "-o", "out.npy", env=env)
                same(np.load("out.npy"), answer_of, f"{mode} {sort} {env}")
            for mode, answer_of in backward.items():
                words = ["--mode", mode.split()[0], *(["--ties", "split"] if "split" in mode else [])]
                run("segment", "x.npy", "s.npy", *words, "--segments", 12, "--grad", "g.npy", "-o", "out.npy", env=env)
                same(np.load("out.npy"), answer_of, f"{mode} backward {sort} {env}")
    run("segment", "x.npy", "s.npy", "--segments", 12, "--bad-index", "error", code=1)
    identity = np.array(run("segment", "x.npy", "s.npy", "--segments", 12, "--mode", "max", "--empty", "identity").stdout.decode().split("\n")[5].split(), np.float32)
    check(np.all(identity == -np.inf), "identity")
    np.save("short.npy", np.arange(3))
    run("segment", "x.npy", "short.npy", code=1)
    check(answer("segment", "x.npy", "s.npy")["shape"] == [100, 19], "the largest id and one")


def check_backward_of_products_with_and_without_zeros():
    for sort in (True, False):
        data = rng.uniform(0.5, 2, (300, 19)).astype(np.float32) * rng.choice(np.float32([-1, 1]), (300, 19))
        ids = rng.integers(0, 9, 300)
        ids[ids == 5] = 6  # an empty one
        ids = np.sort(ids) if sort else ids
        grads = rng.standard_normal((9, 19)).astype(np.float32)
        groups = [np.flatnonzero(ids == s) for s in range(9)]
        wanted = np.zeros_like(data)
        for s, g in enumerate(groups):
            if not len(g):
                continue
            data[g[3], 4:12] = np.float32([0, -0.0] * 4)  # columns 0 to 3 keep none, 4 to 7 one, 8 to 11 two
            data[g[-1], 8:12] = 0
            zeros = data[g] == 0
            with np.errstate(all="ignore"):
                whole = product(np.where(zeros, np.float32(1), data[g]))
                plain = grads[s] * (whole / data[g])
            wanted[g] = np.where(zeros.sum(0) == 0, plain, np.where((zeros.sum(0) == 1) & zeros, grads[s] * whole, 0))
        for name, array in (("x.npy", data), ("s.npy", ids), ("g.npy", grads)):
            np.save(name, array)
        for env in WINDOWS:
            run("segment", "x.npy", "s.npy", "--mode", "prod", "--segments", 9, "--grad", "g.npy", "-o", "out.npy", env=env)
            same(np.load("out.npy"), wanted, f"{sort} {env}")


def product(rows):
    level = list(rows)
    while len(level) > 1 or level is None:
        level = [np.multiply.reduce(level[i:i + 16], axis=0, dtype=np.float32) for i in range(0, len(level), 16)]
    return level[0] if level else np.ones(rows.shape[1], np.float32)


# ---- quantize, dequantize, convert, show ---------------------------------------------------------------------------

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


# ---- Files that are empty, cut short, or made to harm ----------------------------------------------------------------

COMMANDS = [["show"], ["nearest", "--row", "0"], ["lookup", "0"], ["bag", "0"], ["segment", "0"], ["quantize"],
            ["dequantize", "-o", "o.npy"], ["convert", "-o", "o.npy"]]


def check_every_command_survives_every_file():
    values = small_table(20, 8)
    np.save("good.npy", values)
    whole = open("good.npy", "rb").read()
    bad = {"empty.npy": b"", "magic.npy": whole[:6], "header.npy": whole[:70], "cut.npy": whole[:-1], "long.npy": whole + b"x",
           "huge.npy": whole.replace(b"(20, 8)", b"(2000000000000000000, 8)".ljust(7))[:200],
           "negative.npy": whole.replace(b"(20, 8), ", b"(20, -8),"), "big.npy": whole.replace(b"<f4", b">f4"),
           "fortran.npy": whole.replace(b"False", b"True "), "text.npy": b"these are words\n" * 9,
           "empty.safetensors": b"", "length.safetensors": b"\xff" * 16, "text.safetensors": b"these are words\n" * 9,
           "json.safetensors": (2).to_bytes(8, "little") + b"[]", "none.safetensors": (2).to_bytes(8, "little") + b"{}"}
    oracle.write_safetensors("good.safetensors", {"t": ("F32", values)})
    text = open("good.safetensors", "rb").read()
    bad["cut.safetensors"] = text[:-5]
    bad["overlap.safetensors"] = text.replace(b"[0, 640]", b"[8, 640]")
    bad["note.safetensors"] = None
    oracle.write_safetensors("note.safetensors", {"t": ("U8", np.zeros((3, 12), np.uint8))}, {"sheaf.quantized.t": "int8 99"})
    for name, content in bad.items():
        if content is not None:
            open(name, "wb").write(content)
        for words in COMMANDS:
            if (name, words[0]) in (("none.safetensors", "show"), ("note.safetensors", "convert")):
                continue  # no tensors to list, bytes to copy: nothing is wrong with that
            run(words[0], name, *words[1:], code=1)
    for name in ("missing.npy", ".", "good.npy:x", "/dev/null"):
        for words in COMMANDS:
            run(words[0], name, *words[1:], code=1)
    for words in COMMANDS:
        run(words[0], "-", *words[1:], code=1, stdin=b"no npy")
        run(words[0], "-", *words[1:], code=1, stdin=b"")
    check(not os.path.exists("o.npy"), "nothing was written")
    run("show", "none.safetensors")


def check_empty_tables():
    for shape in ((0, 8), (5, 0), (0, 0)):
        np.save("e.npy", np.zeros(shape, np.float32))
        run("show", "e.npy")
        run("quantize", "e.npy", "-o", "q.safetensors")
        run("dequantize", "q.safetensors", "-o", "out.npy")
        run("convert", "e.npy", "--to", "f16", "-o", "out.npy")
        same(np.load("out.npy"), np.zeros(shape, np.float16), "convert")
        run("lookup", "e.npy", "0", "-o", "out.npy")
        same(np.load("out.npy"), np.zeros((1, shape[1]), np.float32), "lookup")
        np.save("none.npy", np.zeros(0, np.int64))
        run("lookup", "e.npy", "none.npy", "-o", "out.npy")
        same(np.load("out.npy"), np.zeros((0, shape[1]), np.float32), "no indices")
        run("bag", "e.npy", "none.npy", "--offsets", "none.npy", "-o", "out.npy")
        np.save("g.npy", np.zeros((0, shape[1]), np.float32))
        run("lookup", "e.npy", "none.npy", "--grad", "g.npy", "-o", "out.npy")
        same(np.load("out.npy"), np.zeros(shape, np.float32), "gradient")
        np.save("ids.npy", np.zeros(shape[0], np.int64))
        run("segment", "e.npy", "ids.npy", "--segments", 2, "-o", "out.npy")
        same(np.load("out.npy"), np.zeros((2, shape[1]), np.float32), "segment")
        if shape[0]:
            check(len(answer("nearest", "e.npy", "--row", 0)["nearest"]) == shape[0] - 1, "nearest")
        else:
            run("nearest", "e.npy", "--row", 0, code=1)


# ---- Larger than memory, and killed ---------------------------------------------------------------------------------

def check_files_larger_than_the_memory_allowed():
    rows, dim, limit = 1 << 18, 1024, 700 << 10  # 1 GiB of f32 under a limit of 700 MiB, in kilobytes
    if subprocess.run(["bash", "-c", f"ulimit -v {limit} && {SHEAF} --version"], capture_output=True).returncode:
        print("skipped: this build does not start under ulimit -v (a sanitizer's)")
        return
    table = np.lib.format.open_memmap("big.npy", mode="w+", dtype=np.float32, shape=(rows, dim))
    marked = np.array([5, 70001, 140002, rows - 1])
    table[marked] = small_table(4, dim)
    chosen = np.array(table[marked])
    del table
    np.save("i.npy", marked[::-1].copy())

    def limited(*words, code=0):
        line = " ".join(map(str, words))
        done = subprocess.run(["bash", "-c", f"ulimit -v {limit} && exec {SHEAF} {line}"], capture_output=True)
        if done.returncode != code:
            fail(f"{line}: exit code {done.returncode}: {done.stderr[-200:]}")
        return done

    got = json.loads(limited("nearest", "big.npy", "--row", 5, "-k", 3, "--metric", "l2", "--json").stdout)["nearest"]
    score = float(oracle.dot(chosen[:1], chosen[0])[0])  # rows of zeros are nearer than the other marked ones
    check([(g["row"], g["score"]) for g in got] == [(0, score), (1, score), (2, score)], f"{got} {score}")
    limited("lookup", "big.npy", "i.npy", "-o", "out.npy")
    same(np.load("out.npy"), chosen[::-1], "lookup")
    np.save("m.npy", marked.reshape(2, 2))
    limited("bag", "big.npy", "m.npy", "-o", "out.npy")
    same(np.load("out.npy"), chosen.reshape(2, 2, dim)[:, 0] + chosen.reshape(2, 2, dim)[:, 1], "bag")
    shown = json.loads(limited("show", "big.npy", "--json").stdout)
    check(shown["zero_rows"] == rows - 4, "show")
    if not QUICK:
        limited("quantize", "big.npy", "--to", "int4", "-o", "q.safetensors")
        same(oracle.read_safetensors("q.safetensors")[0]["table"][marked], oracle.quantize(chosen, "int4")[0], "quantize")
        limited("convert", "big.npy", "--to", "f16", "-o", "out.npy")
        same(np.load("out.npy", mmap_mode="r")[marked], chosen.astype(np.float16), "convert")
        np.save("ids.npy", np.repeat(np.arange(rows // 1024), 1024))
        limited("segment", "big.npy", "ids.npy", "--mode", "max", "-o", "out.npy")
        same(np.load("out.npy")[0], np.maximum(chosen[0], 0), "segment")
        np.save("g.npy", np.ones((4, dim), np.float32))
        limited("lookup", "big.npy", "i.npy", "--grad", "g.npy", "-o", "out.npy")
        grad = np.load("out.npy", mmap_mode="r")
        check(grad[marked].sum() == 4 * dim and grad.shape == (rows, dim), "gradient")
        np.save("g.npy", np.full((2, dim), 3, np.float32))
        limited("bag", "big.npy", "m.npy", "--grad", "g.npy", "-o", "out.npy")
        grad = np.load("out.npy", mmap_mode="r")
        check((grad[marked] == 3).all() and grad.shape == (rows, dim), "gradient of bags")
        check(sum(np.count_nonzero(grad[i:i + 4096]) for i in range(0, rows, 4096)) == 4 * dim, "other rows get none")
        del grad
        limited("dequantize", "q.safetensors", "-o", "out.npy")
        back = np.load("out.npy", mmap_mode="r")
        same(back[marked], oracle.quantize(chosen, "int4")[1], "dequantize")
        check(back.shape == (rows, dim) and not back[6:70001:997].any(), "rows of zeros read back")
        del back
    for name in ("big.npy", "out.npy", "q.safetensors"):
        if os.path.exists(name):
            os.unlink(name)


def check_killed_writes_leave_the_old_file_whole():
    np.save("t.npy", small_table(60000, 64))
    np.save("out.npy", np.arange(3))
    old = open("out.npy", "rb").read()
    started = time.monotonic()
    run("convert", "t.npy", "--to", "f64", "-o", "whole.npy")
    whole, length = open("whole.npy", "rb").read(), time.monotonic() - started
    finished = 0
    for i in range(12 if QUICK else 40):
        process = subprocess.Popen([SHEAF, "convert", "t.npy", "--to", "f64", "-o", "out.npy", "--quiet"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "SHEAF_TEST_WINDOW": "200000"})
        time.sleep(1.2 * length * i / 40)
        process.send_signal(signal.SIGKILL if i % 2 else signal.SIGTERM)
        process.wait()
        content = open("out.npy", "rb").read()
        check(content in (old, whole), f"after {i}: {len(content)} bytes")
        finished += content == whole
        if content == whole:
            open("out.npy", "wb").write(old)
    for name in os.listdir("."):
        if name.startswith(".sheaf-"):
            os.unlink(name)
    process = subprocess.Popen([SHEAF, "convert", "t.npy", "--to", "f64", "-o", "out.npy"], stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, env={**os.environ, "SHEAF_TEST_WINDOW": "2000"})
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()
    check(not [n for n in os.listdir(".") if n.startswith(".sheaf-")], "a terminated command leaves nothing behind")


def check_what_cannot_be_written_is_said():
    np.save("t.npy", small_table(50, 8))
    run("convert", "t.npy", "-o", "missing/out.npy", code=1)
    if os.path.exists("/dev/full"):
        done = subprocess.run(f"{SHEAF} convert t.npy -o - > /dev/full", shell=True, capture_output=True)
        check(done.returncode == 1 and b"space" in done.stderr, f"{done}")
    os.mkdir("folder.npy")
    run("convert", "t.npy", "-o", "folder.npy", code=1)


def check_progress_is_for_terminals():
    slow = {**os.environ, "SHEAF_TEST_WINDOW": "8"}  # a row at a time

    def on_terminal(*words):
        leader, follower = os.openpty()
        begun = time.monotonic()
        done = subprocess.Popen([SHEAF, "show", "t.npy", "--threads", "1", *words], stdout=subprocess.DEVNULL,
                                stderr=follower, env=slow)
        os.close(follower)
        text = b""
        try:
            while piece := os.read(leader, 4096):
                text += piece
        except OSError:  # the other end is closed
            pass
        check(done.wait() == 0, "exit code")
        os.close(leader)
        return text, time.monotonic() - begun

    rows, seconds = 2000, 1.0
    while seconds < 1.5:  # it is shown after one
        rows = int(rows * max(1.3, 2 / max(seconds, 0.01)))
        np.save("t.npy", np.zeros((rows, 2), np.float32))
        text, seconds = on_terminal()
    check(b" rows, " in text and b" s left" in text, text[-200:])
    check(on_terminal("--quiet")[0] == b"", "quiet")
    check(run("show", "t.npy", "--threads", 1, env=slow).stderr == b"", "silent in pipes")


names = sys.argv[2:]
for name, function in list(globals().items()):
    if name.startswith("check_") and (not names or name in names):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            function()
            os.chdir("/")
        print(f"{time.monotonic() - begun:6.2f} s  {name}")
print("all checks passed" if failures == 0 else f"{failures} checks failed")
sys.exit(failures != 0)
