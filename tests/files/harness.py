"""What the checks of commands on files share: running the command, comparing with NumPy, and the loop over checks."""
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

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


def main(checks):
    """Runs every function of `checks` whose name begins so, or those that the command line names; exits."""
    names = sys.argv[2:]
    for name, function in list(checks.items()):
        if name.startswith("check_") and (not names or name in names):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                function()
                os.chdir("/")
            print(f"{time.monotonic() - begun:6.2f} s  {name}")
    print("all checks passed" if failures == 0 else f"{failures} checks failed")
    sys.exit(failures != 0)
