"""Files larger than memory, writes that are killed or cannot be, and progress. Usage: check_limits.py SHEAF [NAME ...]"""
import json
import os
import signal
import subprocess
import time

import numpy as np

import oracle
from harness import QUICK, SHEAF, check, fail, main, run, same, small_table


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
    limited("bag", "big.npy", "m.npy", "--mode", "sum", "-o", "out.npy")
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
        limited("bag", "big.npy", "m.npy", "--mode", "sum", "--grad", "g.npy", "-o", "out.npy")
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


def temporaries():
    return [name for name in os.listdir(".") if name.startswith(".sheaf-")]


def nameless_files():
    """Whether files here can be without a name until they are complete."""
    try:
        os.close(os.open(".", os.O_WRONLY | os.O_TMPFILE))
        return True
    except OSError:
        return False


def has_begun(process):
    """Whether the temporary file of a command has begun to grow; it has a name, or is known to the process only."""
    folder = f"/proc/{process.pid}/fd"
    try:
        open_files = [f"{folder}/{name}" for name in os.listdir(folder)]
        nameless = [name for name in open_files if os.readlink(name).startswith(os.getcwd()) and "(deleted)" in os.readlink(name)]
        return any(os.stat(name).st_size for name in [*nameless, *temporaries()])
    except OSError:  # closed, or renamed, in the meantime
        return False


def killed_in_the_middle(command, how, wait, named):
    """Starts a command, kills it some time after its temporary file has begun to grow: whether it was so caught."""
    process = subprocess.Popen([SHEAF, *command, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "SHEAF_TEST_WINDOW": "20000", **named})
    while process.poll() is None and not has_begun(process):
        pass
    time.sleep(wait)
    process.send_signal(how)
    return process.wait() != 0


def check_killed_writes_leave_the_old_file_whole():
    np.save("t.npy", small_table(60000, 64))
    old = b"what was there before"
    for command in (["convert", "t.npy", "--to", "f64"], ["quantize", "t.npy", "--to", "int8"]):
        run(*command, "-o", "whole.npy")
        whole, caught = open("whole.npy", "rb").read(), 0
        for way in ("early", "late"):
            run(*command, "-o", "way.npy", env={"SHEAF_TEST_NAMED_FILES": way})
            check(open("way.npy", "rb").read() == whole and not temporaries(), f"{command[0]}: names that come {way}")
        for i in range(16 if QUICK else 40):
            open("out.npy", "wb").write(old)
            named = {"SHEAF_TEST_NAMED_FILES": "early"} if i % 4 < 2 or not nameless_files() else {}
            caught += killed_in_the_middle([*command, "-o", "out.npy"], signal.SIGKILL if i % 2 else signal.SIGTERM, 0.0005 * i, named)
            content = open("out.npy", "rb").read()
            check(content in (old, whole), f"{command[0]}, after {i}: {len(content)} bytes")
            check((i % 2 and named) or len(temporaries()) <= (content == old and i % 2), "only what has a name can be left behind")
            for name in temporaries():
                os.unlink(name)
        check(caught >= 5, f"{command[0]}: only {caught} were killed before they were done")


def check_files_cut_short_while_they_are_read():
    """The command ends, says so, and leaves nothing behind."""
    np.save("t.npy", small_table(60000, 64))
    for attempt in range(5):
        np.save("cut.npy", np.load("t.npy"))
        process = subprocess.Popen([SHEAF, "convert", "cut.npy", "--to", "f64", "-o", "out.npy"], stderr=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, env={**os.environ, "SHEAF_TEST_WINDOW": "2000"})
        while process.poll() is None and not has_begun(process):
            pass
        os.truncate("cut.npy", 4096)
        text = process.communicate()[1]
        if process.returncode:  # else it was done before
            check(process.returncode == 1 and b"cut short" in text and text.count(b"\n") == 1, f"{process.returncode} {text}")
            check(not os.path.exists("out.npy") and (not temporaries() or not nameless_files()), f"{os.listdir('.')}")
            return
        os.unlink("out.npy")
    fail("five times it was done before its file was cut short")


def check_threads_that_cannot_be_had_leave_nothing_behind():
    np.save("t.npy", small_table(60000, 64))
    limit = 256 << 20  # no room for the stacks of a thousand threads
    words = f"ulimit -v {limit >> 10} && exec {SHEAF} quantize t.npy --threads 1000 -o out.safetensors"
    done = subprocess.run(["bash", "-c", words], capture_output=True, env={**os.environ, "OMP_STACKSIZE": "8M"})
    if done.returncode == 0 or not nameless_files():
        print("skipped: threads could be had, or files here always have names")
        return
    check(not temporaries() and not os.path.exists("out.safetensors"), f"{os.listdir('.')}")


def check_what_cannot_be_written_is_said():
    np.save("t.npy", small_table(50, 8))
    run("convert", "t.npy", "-o", "missing/out.npy", code=1)
    if os.path.exists("/dev/full"):
        done = subprocess.run(f"{SHEAF} convert t.npy -o - > /dev/full", shell=True, capture_output=True)
        check(done.returncode == 1 and b"space" in done.stderr, f"{done}")
        for rows in (0, 3):  # what fits a buffer is written in the end
            np.save("few.npy", small_table(rows, 8))
            done = subprocess.run(f"{SHEAF} convert few.npy --to f16 -o - > /dev/full", shell=True, capture_output=True)
            check(done.returncode == 1 and done.stderr.count(b"\n") == 1, f"{done}")
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
    check(all(word in text for word in (b" rows, ", b" GB, ", b" GB/s, ", b" s left")), text[-200:])
    check(on_terminal("--quiet")[0] == b"", "quiet")
    check(run("show", "t.npy", "--threads", 1, env=slow).stderr == b"", "silent in pipes")


main(globals())
