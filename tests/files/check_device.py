"""The commands on files with --device cuda:0: the same bytes as on the CPU, forward and backward, for every type.

Usage: check_device.py SHEAF [PLUGIN LIBRARY SONAME]. With a plug-in (tests/fake has one of paper), the command runs with
copies of it and of the library in a folder of their own, since a plug-in is looked for beside the library first. Needs
nothing but Python, so that it runs where there is a device and little else (tests/gpu/run.sh)."""
import concurrent.futures
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

SHEAF = os.path.abspath(sys.argv[1])
QUICK = os.environ.get("SHEAF_TEST_QUICK", "0") != "0"
ROWS, DIM, BAGS, ENTRIES, SEGMENTS = 500, 37, 40, 600, 30
random.seed(7)
failures = []


def save(name, kind, shape, values):
    """An npy file: kind is 'f4' or 'i8'."""
    text = "{'descr': '<%s', 'fortran_order': False, 'shape': (%s), }" % (kind, "".join(f"{n}, " for n in shape))
    text = text.ljust(128 - 10 - 1) + "\n"
    with open(name, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())
        file.write(struct.pack(f"<{len(values)}{'f' if kind == 'f4' else 'q'}", *values))


def numbers(count):
    return [random.gauss(0, 1) for _ in range(count)]


def run(environment, *words):
    return subprocess.run([SHEAF, *words], capture_output=True, text=True, env={**os.environ, **environment})


def prepare(environment):
    """Tables of every type, and what goes with them; the half that --grad wants in the table's own type."""
    save("f32.npy", "f4", (ROWS, DIM), numbers(ROWS * DIM))
    save("grad-rows.npy", "f4", (ENTRIES, DIM), numbers(ENTRIES * DIM))
    save("grad-bags.npy", "f4", (BAGS, DIM), numbers(BAGS * DIM))
    save("grad-segments.npy", "f4", (SEGMENTS, DIM), numbers(SEGMENTS * DIM))
    save("weights.npy", "f4", (ENTRIES,), [abs(x) + 0.1 for x in numbers(ENTRIES)])
    save("indices.npy", "i8", (ENTRIES,), [random.randrange(-5, ROWS + 5) for _ in range(ENTRIES)])
    save("offsets.npy", "i8", (BAGS,), sorted([0, 0] + [random.randrange(ENTRIES + 1) for _ in range(BAGS - 2)]))
    ids = [random.randrange(SEGMENTS) for _ in range(ROWS)]
    save("ids.npy", "i8", (ROWS,), ids)
    save("sorted.npy", "i8", (ROWS,), sorted(ids))
    made = []
    for kind in ("f64", "f16", "bf16"):
        for name in ("f32", "grad-rows", "grad-bags", "grad-segments", "weights"):
            to = f"{kind}.safetensors" if name == "f32" else f"{name}-{kind}.safetensors"
            made.append(run(environment, "convert", f"{name}.npy", "--to", kind, "-o", to))
    for kind in ("int8", "int4"):
        made.append(run(environment, "quantize", "f32.npy", "--to", kind, "-o", f"{kind}.safetensors"))
    failures.extend(done.stderr for done in made if done.returncode)


def cases():
    for kind in ("f32", "int4") if QUICK else ("f32", "f64", "f16", "bf16", "int8", "int4"):
        plain = kind.startswith(("f", "b"))
        table = "f32.npy" if kind == "f32" else f"{kind}.safetensors"
        beside = (lambda name: f"{name}.npy") if kind in ("f32", "int8", "int4") else (lambda name: f"{name}-{kind}.safetensors")
        lookup = ["lookup", table, "indices.npy", "--bad-index", "skip", "--padding", "3"]
        bag = ["bag", table, "indices.npy", "--offsets", "offsets.npy", "--bad-index", "skip"]
        yield lookup
        for mode in ("sum", "mean", "max"):
            yield bag + ["--mode", mode]
            if plain:
                yield bag + ["--mode", mode, "--grad", beside("grad-bags")]
        yield bag + ["--mode", "sum", "--weights", beside("weights")]
        if not plain:
            continue
        yield lookup + ["--grad", beside("grad-rows")]
        yield bag + ["--mode", "mean", "--weights", beside("weights"), "--grad", beside("grad-bags")]
        for mode in ("sum", "mean", "max", "min", "prod"):
            for ids in ("ids.npy", "sorted.npy")[:2 if kind == "f32" else 1]:
                segment = ["segment", table, ids, "--mode", mode, "--segments", str(SEGMENTS + 1 if mode == "sum" else SEGMENTS)]
                yield segment
                if mode != "sum":
                    yield segment + ["--grad", beside("grad-segments")]


def compare(number, words, environment):
    """One command on both; the second also in small windows and blocks."""
    contents, reports = [], []
    for i, (where, window) in enumerate((("cpu", None), ("cuda:0", None), ("cuda:0", "20000"))):
        if window and number % 7:
            continue
        out = f"out-{number}-{i}.npy"
        done = run({**environment, **({"SHEAF_TEST_WINDOW": window} if window else {})}, *words, "--device", where, "-o", out, "--json")
        if done.returncode:
            failures.append(f"{' '.join(words)} --device {where}: {done.stderr.strip()}")
            return
        contents.append(open(out, "rb").read())
        reports.append({key: value for key, value in json.loads(done.stdout).items() if key != "output"})
        os.unlink(out)
    if any(content != contents[0] for content in contents):
        failures.append(f"{' '.join(words)}: other bytes than on the CPU")
    if any(report != reports[0] for report in reports):
        failures.append(f"{' '.join(words)}: another report than on the CPU: {reports}")


def main():
    environment = {}
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:]:
            plugin, library, soname = sys.argv[2:]
            shutil.copy(plugin, os.path.join(folder, os.path.basename(plugin)))
            shutil.copy(library, os.path.join(folder, soname))
            environment = {"LD_LIBRARY_PATH": folder}
        os.chdir(folder)
        prepare(environment)
        listed = list(cases())
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for done in [pool.submit(compare, i, words, environment) for i, words in enumerate(listed)]:
                done.result()
        os.chdir("/")
    for text in failures[:20]:
        print("FAILED:", text)
    print(f"{len(listed)} commands compared, {len(failures)} failures")
    return bool(failures)


sys.exit(main())
