"""Nearest rows of tables in files, to the exact order of NumPy. Usage: check_nearest.py SHEAF [NAME ...]"""
import json

import numpy as np

import oracle
from harness import WINDOWS, answer, check, main, rng, run, same, small_table


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
    special = {"model": {"vocab": {f"word{i}": i for i in range(98)}},
               "added_tokens": [{"id": 99, "content": "<last>"}, {"id": 98, "content": "<s>"}, {"id": 3, "content": "second name"},
                                {"content": "nowhere"}, {"id": -1, "content": "x"}, {"id": 1 << 60, "content": "y"}, 7]}
    json.dump(special, open("special.json", "w"))
    for name, row in (("<last>", 99), ("<s>", 98), ("word3", 3)):
        check(answer("nearest", "t.npy", "--row", name, "--names", "special.json")["row"] == row, name)
    open("odd.txt", "wb").write(b"".join(b"w\xff\x1b[31m%d\n" % i for i in range(100)))
    got = answer("nearest", "t.npy", "--row", 3, "--names", "odd.txt", "-k", 1)["nearest"][0]
    check(got["name"] == f"w\ufffd\x1b[31m{order[1]}", f"{got}")
    text = run("nearest", "t.npy", "--row", 3, "--names", "odd.txt").stdout
    check(f"w\\xff\\x1b[31m{order[1]}".encode() in text and b"\x1b" not in text, f"{text}")
    text = run("nearest", "t.npy", "--row", 3, "-k", 2, "--names", "names.txt").stdout.decode()
    check(f"word{order[1]}" in text, text)
    for words in ([], ["--names", "names.txt"]):
        text = run("nearest", "t.npy", "--row", 3, *words).stdout.decode()
        check(not any(line.endswith(" ") for line in text.split("\n")), f"blanks at the end of a line: {text}")
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


main(globals())
