"""Files that are empty, cut short, or made to harm. Usage: check_hostile.py SHEAF [NAME ...]"""
import os

import numpy as np

import oracle
from harness import answer, check, main, run, same, small_table


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
    check(b"'-' is given twice" in run("lookup", "-", "-", code=1, stdin=whole).stderr, "stdin is one file")
    check(b"'3,a' is neither a file nor a list of numbers: 'a' is none" in run("lookup", "good.npy", "3,a", code=2).stderr, "lists")
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
        run("lookup", "e.npy", "0", "--bad-index", "skip", "-o", "out.npy")
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
        if shape[0] == 0:
            check(b"outside 0..-1" not in run("lookup", "e.npy", "0", code=1).stderr, "no range without rows")
        if shape[0]:
            check(len(answer("nearest", "e.npy", "--row", 0)["nearest"]) == shape[0] - 1, "nearest")
        else:
            check(b"the table has no rows" in run("nearest", "e.npy", "--row", 0, code=1).stderr, "no range without rows")


main(globals())
