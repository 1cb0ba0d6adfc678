#!/usr/bin/env python3
"""Writes cases for `sheaf shard verify` that no file holds: strategies and costs as docs/sharding.md and the rules of
PyTorch's DTensor give them, worked out here on their own, for meshes, shapes and placements at random.

    strategy_cases.py KNOWN OUT COUNT    checks itself on the cases of KNOWN first; status 1 when it does not give those
"""
import itertools
import json
import math
import random
import sys

LATENCY, BANDWIDTH, OVERHEAD = 2.7, 87.7 * 0.22, 6.6


def cuts(word):
    return int(word[2:-1]) if word.startswith("S(") else None


def is_partial(word):
    return word.startswith("P") or word == "MaskP"


def ring(ranks, hops, gib):
    return OVERHEAD + hops * LATENCY + 1e6 * gib * hops / (ranks * BANDWIDTH)


def step(now, to, ranks, gib):
    """The cost of one mesh dimension's change, and what is left of the tensor afterwards."""
    if cuts(now) is not None and to == "R":
        gib *= ranks
        return ring(ranks, ranks - 1, gib), gib
    if cuts(now) is not None and cuts(to) is not None:
        return ring(ranks, ranks - 1, gib) + 1, gib
    if is_partial(now) and to == "R":
        return ring(ranks, 2 * (ranks - 1), gib), gib
    if is_partial(now) and cuts(to) is not None:
        return ring(ranks, ranks - 1, gib), gib / ranks
    if now == "R" and cuts(to) is not None:
        return 0.0, gib / ranks
    if now == "R":
        return 0.0, gib
    return math.inf, gib


def path(now, wanted):
    """(mesh dimension, from, to), one after the other."""
    now, steps = list(now), []

    def go(m, to):
        if now[m] != to:
            steps.append((m, now[m], to))
            now[m] = to

    if len(now) == 1:
        go(0, wanted[0])
        return steps
    if any(cuts(word) is not None for word in now):
        for m in reversed(range(len(now))):
            to, d = wanted[m], cuts(wanted[m])
            if d is not None:
                here = [k for k in range(m) if cuts(now[k]) == d]
                there = [k for k in range(m) if cuts(wanted[k]) == d]
                if here != there:
                    to = "R"
            go(m, to)
    for m in range(len(now)):
        go(m, wanted[m])
    return steps


def cost(mesh, shape, size, now, wanted):
    if all(word == "R" for word in now):
        return 0.0
    parts = math.prod(n for n, word in zip(mesh, now) if cuts(word) is not None)
    gib, total = math.prod(shape) * size / parts / 2**30, 0.0
    for m, old, new in path(now, wanted):
        one, gib = step(old, new, mesh[m], gib)
        total += one
    return total


def rules(op, rank):
    """[output, first input, indices] along one mesh dimension."""
    if op == "aten.embedding.default":
        yield "R", "R", "R"
        yield f"S({rank})", "S(1)", "R"
        yield "MaskP", "S(0)", "MaskP"
        for d in range(rank):
            yield f"S({d})", "R", f"S({d})"
    else:
        yield "R", "R", "R"
        yield "S(1)", f"S({rank})", "R"
        for d in range(rank):
            yield "P(sum)", f"S({d})", f"S({d})"
        yield "P(sum)", "P(sum)", "R"


def fits(mesh, shape, words):
    for d, extent in enumerate(shape):
        if extent < math.prod(n for n, word in zip(mesh, words) if cuts(word) == d):
            return False
    return True


def strategies(case):
    mesh, shapes, now = case["mesh"], case["shapes"], case["in"]
    found = []
    for choice in itertools.product(rules(case["op"], len(shapes[1])), repeat=len(mesh)):
        out, first, index = (list(words) for words in zip(*choice))
        if not fits(mesh, shapes[0], first) or not fits(mesh, shapes[1], index):
            continue
        if any(len({w for w in words if is_partial(w)}) > 1 for words in (out, first, index)):
            continue
        costs = [cost(mesh, shapes[0], 4, now[0], first), cost(mesh, shapes[1], 8, now[1], index)]
        costs = [[None] if math.isinf(c) else [round(c, 6)] for c in costs]
        found.append({"out": out, "in": [first, index], "cost": costs})
    return found


def close(a, b):
    return a == b or (None not in (a, b) and abs(a - b) <= 2e-6 + 1e-12 * abs(b))


def is_same(got, wanted):
    return len(got) == len(wanted) and all(
        g["out"] == w["out"] and g["in"] == w["in"] and all(close(x[0], y[0]) for x, y in zip(g["cost"], w["cost"]))
        for g, w in zip(got, wanted))


def words_for(shape, mesh, partial, source):
    """Placements under which no rank's part is empty by the product rule, as a tensor that exists has them."""
    while True:
        kinds = ["R"] + [f"S({d})" for d in range(len(shape))] + (["P(sum)"] if partial else [])
        words = [source.choice(kinds) for _ in mesh]
        if fits(mesh, shape, words):
            return words


def invent(source):
    mesh = source.choice([[2], [3], [5], [16], [64], [2, 3], [3, 2], [4, 4], [16, 64], [1, 3], [2, 2, 2], [3, 2, 2], [2, 1, 4]])
    rank = source.choice([1, 1, 2, 3]) if len(mesh) < 3 else source.choice([1, 2])
    backward = source.random() < 0.5
    index = [source.choice([1, 2, 7, 24, 64, 1000, 4096]) for _ in range(rank)]
    dim = source.choice([1, 3, 8, 64, 127, 4096])
    first = index + [dim] if backward else [source.choice([1, 5, 16, 100, 1023, 10**7]), dim]
    case = {"op": "aten.embedding_dense_backward.default" if backward else "aten.embedding.default", "mesh": mesh,
            "shapes": [first, index],
            "in": [words_for(first, mesh, backward, source), words_for(index, mesh, False, source)]}
    case["strategies"] = strategies(case)
    return case


def main():
    known, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(known) as f:
        cases = json.load(f)["cases"]
    wrong = [i for i, case in enumerate(cases) if not is_same(strategies(case), case["strategies"])]
    if wrong:
        print(f"{len(wrong)} of {len(cases)} known cases come out otherwise here, the first is case {wrong[0]}")
        return 1
    source = random.Random(20261115)
    with open(out, "w") as f:
        json.dump({"cases": [invent(source) for _ in range(count)]}, f)
    print(f"{len(cases)} known cases agree; {count} others written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
