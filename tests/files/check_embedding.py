"""Lookups and bags on files, forward and backward, compared with NumPy. Usage: check_embedding.py SHEAF [NAME ...]"""
import io
import json
import os

import numpy as np

import oracle
from harness import WINDOWS, answer, check, main, rng, run, same, small_table


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
        report = answer("lookup", "t.npy", "i.npy", "--padding", 11, "--bad-index", "skip", "-o", "out.npy", env=env)
        check(report["bad_indices"] == 2 and report["first_bad_position"] == 9, "report")
        same(np.load("out.npy"), wanted.reshape(9, 4, 37), "forward")
        run("lookup", "t.npy", "i.npy", "--padding", 11, "--grad", "g.npy", "--bad-index", "skip", "-o", "grad.safetensors", env=env)
        same(oracle.read_safetensors("grad.safetensors")[0]["grad"], backward, "backward")
    for words in ([], ["--bad-index", "error"]):
        done = run("lookup", "t.npy", "i.npy", *words, "-o", "new.npy", code=1)
        check(b"indices: -7 at position 9 is outside 0..199; 2 such entries" in done.stderr, done.stderr)
    check(not os.path.exists("new.npy"), "nothing is written")
    done = run("lookup", "t.npy", "3,200", "--bad-index", "skip", "-o", "out.npy")
    check(b"skipped indices: 200 at position 1 is outside 0..199; 1 such entry\n" in done.stderr, done.stderr)
    check(b"out.npy: 2 rows of 37 f32\n" == done.stdout, done.stdout)
    piped = run("lookup", "-", "3,1,3", "-o", "-", stdin=open("t.npy", "rb").read()).stdout
    same(np.load(io.BytesIO(piped)), table[[3, 1, 3]], "pipes")
    values = answer("lookup", "t.npy", "5")["values"]
    same(np.array(values, np.float32), table[[5]], "printed JSON")
    text = run("lookup", "t.npy", "5").stdout.decode().split()
    same(np.array(text, np.float32), table[5], "printed text")
    same(np.array(answer("lookup", "t.npy", "i.npy", "--threads", 3, "--bad-index", "skip")["shape"]), np.array([9, 4, 37]), "shape")
    assert b"'x' is none" in run("lookup", "t.npy", "1,x", code=2).stderr
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
    common = ["bag", "t.npy", "i.npy", "--offsets", "o.npy", "--bad-index", "skip"]
    for env in WINDOWS:
        for words, wanted in ((["--mode", "sum"], sums), (["--mode", "mean"], means), (["--mode", "max"], maxima),
                              ([], means), (["--mode", "sum", "--weights", "w.npy"], weighted), (["--mode", "sum", "--grad", "g.npy"], sum_grad),
                              (["--mode", "mean", "--grad", "g.npy"], mean_grad), (["--mode", "max", "--grad", "g.npy"], max_grad),
                              (["--mode", "sum", "--weights", "w.npy", "--grad", "g.npy"], weighted_sum_grad),
                              (["--mode", "mean", "--weights", "w.npy", "--grad", "g.npy"], weighted_mean_grad)):
            run(*common, *words, "-o", "out.npy", env=env)
            same(np.load("out.npy"), wanted, f"{words} {env}")
    np.save("m.npy", rng.integers(0, 200, (11, 5)))
    run("bag", "t.npy", "m.npy", "--mode", "sum", "-o", "out.npy")
    same(np.load("out.npy"), np.array([oracle.tree_sum(table[row]) for row in np.load("m.npy")]), "matrix")
    check(b"999 at position 7" in run("bag", "t.npy", "i.npy", "--offsets", "o.npy", code=1).stderr, "refused")
    run("bag", "t.npy", "i.npy", "--bad-index", "skip", code=2)
    np.save("bad.npy", np.array([0, 5, 3]))
    check(b"position 1" in run("bag", "t.npy", "i.npy", "--offsets", "bad.npy", "--bad-index", "skip", code=1).stderr, "offsets")
    np.save("bad.npy", np.array([1, 5]))
    run("bag", "t.npy", "i.npy", "--offsets", "bad.npy", "--bad-index", "skip", code=1)
    run("bag", "t.npy", "i.npy", "--offsets", "o.npy", "--weights", "o.npy", "--bad-index", "skip", code=1)
    run(*common, "--mode", "max", "--weights", "w.npy", code=1)
    np.save("t64.npy", table.astype(np.float64))
    run("bag", "t64.npy", "i.npy", "--offsets", "o.npy", "--weights", "w.npy", "--bad-index", "skip", code=1)


main(globals())
