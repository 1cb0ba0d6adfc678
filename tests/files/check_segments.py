"""Segment reductions on files, forward and backward, compared with NumPy. Usage: check_segments.py SHEAF [NAME ...]"""
import numpy as np

import oracle
from harness import WINDOWS, answer, check, main, rng, run, same


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
                run("segment", "x.npy", "s.npy", "--mode", mode, "--segments", 12, "--bad-index", "skip", "-o", "out.npy", env=env)
                same(np.load("out.npy"), answer_of, f"{mode} {sort} {env}")
            for mode, answer_of in backward.items():
                words = ["--mode", mode.split()[0], *(["--ties", "split"] if "split" in mode else [])]
                run("segment", "x.npy", "s.npy", *words, "--segments", 12, "--grad", "g.npy", "--bad-index", "skip", "-o", "out.npy", env=env)
                same(np.load("out.npy"), answer_of, f"{mode} backward {sort} {env}")
    for words in ([], ["--bad-index", "error"]):
        done = run("segment", "x.npy", "s.npy", "--segments", 12, *words, code=1)
        check(b"ids: -3 at position 4 is outside 0..11; 2 such entries" in done.stderr, done.stderr)
    skipped = answer("segment", "x.npy", "s.npy", "--segments", 12, "--bad-index", "skip", "-o", "out.npy")
    check([skipped[name] for name in ("bad_indices", "first_bad_position", "first_bad_index")] == [2, 4, -3], skipped)
    identity = np.array(run("segment", "x.npy", "s.npy", "--segments", 12, "--mode", "max", "--empty", "identity", "--bad-index", "skip").stdout.decode().split("\n")[5].split(), np.float32)
    check(np.all(identity == -np.inf), "identity")
    np.save("short.npy", np.arange(3))
    run("segment", "x.npy", "short.npy", code=1)
    check(answer("segment", "x.npy", "s.npy", "--bad-index", "skip")["shape"] == [100, 19], "the largest id and one")


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


main(globals())
