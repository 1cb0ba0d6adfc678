"""Help, manual page, completions, docs/cli.md and HTML pages. Usage: check_pages.py SHEAF SOURCE [NAME ...]"""
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

SHEAF, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
# What a browser makes of a page depends on no compiler or sanitizer: where time is short, pages are only written.
QUICK = os.environ.get("SHEAF_TEST_QUICK", "0") != "0"
BROWSER = next(filter(None, map(shutil.which, () if QUICK else ("chromium", "chromium-browser", "google-chrome"))), None)
failures = 0


def check(condition, text):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", str(text)[:600])


def run(*words, code=0, **more):
    done = subprocess.run([SHEAF, *words], capture_output=True, text=True, **more)
    check(done.returncode == code, f"{' '.join(words)}: exit code {done.returncode}, not {code}: {done.stderr[-300:]}")
    return done


def commands():
    """Every command, parts included, from the manual page."""
    return re.findall(r'^\.SS "sheaf ((?:[a-z]+)(?: [a-z]+)?)(?=[ "])', run("--man").stdout, re.M)


def options_of(command):
    return set(re.findall(r"(?:^|[ ,])(--[a-z-]+)(?= |$)", "\n".join(
        line[:40] for line in run(*command.split(), "--help").stdout.split("\n") if line.startswith("  -")), re.M))


# ---- Help, manual page, completions ------------------------------------------------------------------------------

def check_every_command_has_help():
    check(len(commands()) > 18, commands())
    for command in commands():
        text = run(*command.split(), "--help").stdout
        check(text.startswith(f"Usage: sheaf {command}") and "Exit codes" in text, text)
        check(all(len(line) <= 120 for line in text.split("\n")), f"{command}: lines are too long")
        done = run(*command.split(), "--frobnicate", code=2)
        check(done.stderr.count("\n") == 1, done.stderr)


def check_every_command_that_prints_results_prints_json():
    for command in commands():
        check("--json" in options_of(command) or command in ("completion", "shard", "trace"), f"{command} has no --json")


def check_typos_are_understood():
    for words, meant in ((["nearst"], "nearest"), (["quantise"], "quantize"), (["lokup"], "lookup"), (["--hlep"], "--help"),
                         (["nearest", "--mertic", "l2"], "--metric"), (["bench", "lookpu"], "lookup"), (["shard", "paln"], "plan"),
                         (["trace", "veiw"], "view"), (["completion", "bsh"], "bash"), (["show", "--xyzzy"], "")):
        text = run(*words, code=2).stderr
        check(f"did you mean '{meant}'?" in text if meant else "did you mean" not in text, text)


def check_the_manual_page_is_sound():
    page = run("--man").stdout
    for command in commands():
        for option in options_of(command) - {"--help"}:
            check("\\fB\\-\\-" + option[2:] + "\\fR" in page, f"{option} is not in the manual page")
    if shutil.which("man"):
        done = subprocess.run(["man", "--warnings", "-l", "-"], input=page, capture_output=True, text=True,
                              env={**os.environ, "MANWIDTH": "100", "PAGER": "cat", "LC_ALL": "C"})
        check(done.returncode == 0 and "NAME" in done.stdout and not done.stderr, done.stderr)


def check_completions_load_and_complete():
    for shell in ("bash", "zsh", "fish"):
        open(f"sheaf.{shell}", "w").write(run("completion", shell).stdout)
    bash = r"""source sheaf.bash
      ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _sheaf; echo "${COMPREPLY[@]}"; }
      ask sheaf ne; ask sheaf nearest t --me; ask sheaf nearest t --metric ''; ask sheaf shard ''; ask sheaf shard plan --me
      ask sheaf completion z"""
    done = subprocess.run(["bash", "-c", bash], capture_output=True, text=True)
    wanted = ["nearest", "--metric", "cosine dot l2", "plan verify profile", "--mesh --memory", "zsh"]
    got = [set(line.split()) for line in done.stdout.split("\n")]
    check(all(set(w.split()) <= g for w, g in zip(wanted, got)) and not done.stderr, (done.stdout, done.stderr))
    if shutil.which("zsh"):
        done = subprocess.run(["zsh", "-f", "-c", "autoload -Uz compinit && compinit -D -u && source ./sheaf.zsh && "
                               "print $_comps[sheaf] && functions _sheaf | wc -l"], capture_output=True, text=True)
        check(done.stdout.startswith("_sheaf") and not done.stderr, (done.stdout, done.stderr))
    else:
        print("skipped: zsh")
    if shutil.which("fish"):
        script = "source sheaf.fish; complete -C 'sheaf ne'; complete -C 'sheaf nearest t --metric '"
        done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True,
                              env={**os.environ, "HOME": os.getcwd()})
        got = {line.split("\t")[0] for line in done.stdout.split("\n")}
        check({"nearest", "cosine", "dot", "l2"} <= got and not done.stderr, (done.stdout, done.stderr))
    else:
        print("skipped: fish")


def check_the_document_has_every_command():
    """docs/cli.md has a section for every command, with its help as it is, and nothing that does not exist."""
    text = open(f"{SOURCE}/docs/cli.md").read()
    sections = dict(re.findall(r"^## sheaf ([a-z]+(?: [a-z]+)?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    check(set(sections) == set(commands()), set(sections) ^ set(commands()))
    for command, section in sections.items():
        help_text = run(*command.split(), "--help").stdout
        check(f"```\n{help_text}```" in section, f"docs/cli.md: 'sheaf {command} --help' prints something else")
        check(re.search(rf"^\$ (mpirun .*)?sheaf {command}", section, re.M), f"docs/cli.md: no example of 'sheaf {command}'")
    known = {command: options_of(command) for command in commands()}
    for line in re.findall(r"^\$ (?:mpirun [^|]*? )?(sheaf .*)$", text, re.M):
        for part in line.split("|"):
            words = part.split()
            if not words or words[0] != "sheaf" or words[1].startswith("-"):
                continue
            command = " ".join(words[1:3]) if " ".join(words[1:3]) in known else words[1]
            used = {word.split("=")[0] for word in words if word.startswith("--")}
            check(command in known and used <= known[command] | {"--help"}, f"docs/cli.md: {part}")


# ---- Terminals ---------------------------------------------------------------------------------------------------

def on_terminal(columns, *words):
    """What a command prints on a terminal of so many columns."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([SHEAF, *words], stdout=there, stderr=subprocess.DEVNULL)
    os.close(there)
    text = b""
    while True:
        try:
            part = os.read(here, 65536)
        except OSError:  # the other side is closed
            part = b""
        if not part:
            break
        text += part
    os.close(here)
    check(process.wait() == 0, f"{words}: exit code {process.returncode}")
    return text.decode().replace("\r\n", "\n").split("\n")


def check_bench_fits_the_terminal():
    words = ("bench", "small", "run", "--seconds", "0.01")
    pipe = run(*words).stdout.split("\n")
    check(any(line.startswith("suite ") and line.endswith("kernel; ceilings") for line in pipe), pipe)
    for columns in (199, 120, 80, 66):
        lines = on_terminal(columns, *words)
        head = next(i for i, line in enumerate(lines) if " thr " in line)
        table = lines[head:lines.index("", head)]
        check(len(table) == 5 and all(len(line.rstrip()) == len(line) <= columns for line in table), table)
        check(lines[head].startswith("suite " if columns >= 98 else "case ") and lines[head].endswith("target"), lines[head])
        check(any("run-segm..um-20x64" in line if columns == 66 else "run-segment_sum-20x64" in line for line in table), table)
    check("kernel; ceilings" in "".join(on_terminal(200, *words)), "a terminal wide enough for all")


# ---- Pages -------------------------------------------------------------------------------------------------------

def result(name, threads, fraction, **more):
    op, dtype, dim = re.match(r"(\w+)-(\w+)-D(\d+)", name).groups()
    return {"suite": "bag", "case": name, "dtype": dtype, "index": "i64", "spread": name.rsplit("-", 1)[1], "rows": 1000000,
            "dim": int(dim), "threads": threads, "sku": f"{op}.{dtype}.i64/cpu.avx512", "ns": 1e6 / fraction / threads,
            "gbps": 30 * fraction, "ceiling": "gather", "ceiling_gbps": 30.0, "fraction": fraction, "fraction_quiet": fraction, **more}


EVIL = '</script><script>document.title="harm"</script><!--<script>'


def sample_results():
    results = [result(f"bag_{mode}-f32-D{dim}-L20-V1M-{spread}", threads, 0.3 + 0.1 * i / threads)
               for threads in (1, 2) for i, (mode, dim, spread) in enumerate(
                   [("sum", 64, "uniform"), ("sum", 128, "uniform"), ("sum", 128, "1.05"), ("max", 64, "uniform")])]
    results.append({"suite": "bag", "case": EVIL, "fault": EVIL, "threads": 1, "ns": 0})
    ceilings = [{"ceiling": "read", "row_bytes": 0, "threads": 2, "gbps": 70.0, "gbps_p10": 60.0, "gbps_p90": 75.0, "way": "plain"}]
    return {"machine": {"cpu": "A & B <i>", "version": "0.1.0", "isa": "avx512", "cores": 2, "date": "2026-11-15"},
            "command": "sheaf bench bag", "ceilings": ceilings, "results": results}


def browse(words):
    """Runs the browser; one that does not come to an end, as happens now and then, is ended and run again."""
    for attempt in range(4):
        process = subprocess.Popen([*words, f"--user-data-dir={os.getcwd()}/profile{attempt}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True, env={**os.environ, "HOME": os.getcwd()})
        try:
            out, err = process.communicate(timeout=60)
            return subprocess.CompletedProcess(words, process.returncode, out, err)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    check(False, "the browser did not end, four times")
    return subprocess.CompletedProcess(words, 1, "", "")


def open_page(path, script, width=900, scheme=1):
    """The page's answer to a script, given in the document's title. Schemes: 0 dark, 1 light."""
    if not BROWSER:
        return None
    page = open(path).read().replace("</body>", f"<script>try {{ document.title = JSON.stringify((() => {{ {script} }})()) }} "
                                     "catch (e) { document.title = 'threw ' + e }</script></body>")
    open("asked.html", "w").write(page)
    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--window-size={width},900",
             "--virtual-time-budget=2000", f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom"]
    done = browse([*words, f"file://{os.getcwd()}/asked.html"])
    check("CONSOLE" not in done.stderr, [line for line in done.stderr.split("\n") if "CONSOLE" in line])
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    text = title.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") if title else ""
    try:
        return json.loads(text)
    except ValueError:
        check(False, f"{path}: {text or done.stderr[-500:]}")
        return None


def check_a_page_of_benchmarks():
    json.dump(sample_results(), open("now.json", "w"))
    old = sample_results()
    for item in old["results"]:
        item["ns"] *= 2
    json.dump(old, open("old.json", "w"))
    done = run("bench", "--from", "now.json", "--compare", "old.json", "--report", "page.html")
    check(done.stdout.endswith("The page is in page.html\n"), done.stdout)
    check("8 cases are in both; the middle one is 2.00 times as fast" in done.stdout, done.stdout)
    page = open("page.html").read()
    check(EVIL not in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page, "harm, or network")
    asked = open_page("page.html", """
      const fractions = () => [...document.querySelectorAll("#results tbody tr td:nth-child(7)")].map(c => Number(c.textContent));
      const button = [...document.querySelectorAll("#results th button")].find(b => b.textContent === "fraction");
      button.click(); const falling = fractions(); button.click(); const rising = fractions();
      const filter = document.querySelector("input"); filter.value = "1.05"; filter.dispatchEvent(new Event("input"));
      return { charts: ["fraction", "skew", "scaling"].map(n => document.querySelectorAll("#chart-" + n + " rect").length),
        falling, rising, filtered: fractions().length, command: document.getElementById("command").textContent,
        compared: document.getElementById("compared").textContent, ceilings: document.querySelectorAll("#ceilings tbody tr").length,
        faults: document.querySelectorAll("#faults tbody tr").length, faster: document.querySelectorAll(".faster").length,
        name: document.querySelector("h1").textContent, scripts: document.scripts.length };""")
    if asked is None:
        print("skipped: no Chromium, or no time for it" if not BROWSER else "no answer")
        return
    check(asked["charts"] == [3, 2, 2], asked["charts"])
    check(asked["falling"] == sorted(asked["rising"], reverse=True) and len(asked["rising"]) == 8, asked)
    check(asked["rising"] == sorted(asked["rising"]), asked["rising"])
    check(asked["filtered"] == 2 and asked["ceilings"] == 1 and asked["faults"] == 1 and asked["faster"] == 2, asked)
    check(asked["command"] == "sheaf bench bag" and "2.00 times" in asked["compared"] and asked["name"].endswith("A & B <i>"), asked)
    check(asked["scripts"] == 3, asked["scripts"])
    dark, light = (open_page("page.html", "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]", scheme=s) for s in (0, 1))
    brightness = lambda rgb: sum(map(int, re.findall(r"\d+", rgb)[:3]))
    check(brightness(dark[0]) < 150 < 600 < brightness(dark[1]) and brightness(light[1]) < 200 < 700 < brightness(light[0]), (dark, light))
    narrow = open_page("page.html", "return [document.documentElement.scrollWidth, innerWidth, "
                                    "document.querySelector('#chart-fraction svg').viewBox.baseVal.width]", 500)
    check(narrow[0] <= narrow[1] and narrow[2] <= narrow[1], narrow)


def check_pages_say_what_is_wrong_with_their_figures():
    """Runs that were interrupted by other work, and those that somebody stopped."""
    disturbed = sample_results()
    disturbed["results"][0]["interrupted"] = 3
    json.dump({**disturbed, "stopped": True}, open("bad.json", "w"))
    json.dump(sample_results(), open("good.json", "w"))
    asked = []
    for name in ("bad", "good"):
        run("bench", "--from", f"{name}.json", "--report", f"{name}.html")
        asked.append(open_page(f"{name}.html", "return [...document.querySelectorAll('.warning')].map(w => w.textContent)"))
    if asked[0] is not None:
        check(len(asked[0]) == 2 and "1 of 9 cases" in asked[0][1] and "stopped before its end" in asked[0][0], asked)
        check(asked[1] == [], asked)
    process = subprocess.Popen([SHEAF, "bench", "small", "--seconds", "60", "--report", "half.html", "--json"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    check(process.returncode == 1 and "the results are not complete" in err and json.loads(out)["stopped"], err)
    check('"stopped":true' in open("half.html").read(), "the page of a run that was stopped")


def check_odd_words_are_written_as_a_shell_reads_them():
    json.dump(sample_results(), open("it's $a\x1b.json", "w"))
    done = run("bench", "--from", "it's $a\x1b.json", "--json")
    data = json.loads(run("bench", "small", "select", "--seconds", "0.01", "--json", "--report", "it's.html").stdout)
    check(data["command"] == "sheaf bench small select --seconds 0.01 --json --report 'it'\\''s.html'", data["command"])
    name = b"caf\xe9.html"  # no UTF-8
    done = subprocess.run([SHEAF, "bench", "small", "select", "--seconds", "0.01", "--report", name], capture_output=True)
    check(done.returncode == 0 and b"The page is in caf\\xe9.html\n" in done.stdout, done)
    check("caf\ufffd.html" in open(name, encoding="utf-8").read(), "the page is UTF-8")


def check_a_page_of_this_machine():
    run("bench", "small", "--seconds", "0.01", "--json", "--report", "small.html")
    asked = open_page("small.html", "return [document.querySelectorAll('#results tbody tr').length, document.getElementById('command').textContent]")
    check(asked is None or (asked[0] >= 6 and asked[1].startswith("sheaf bench small")), asked)


def check_suites_that_are_no_cases_are_drawn_and_compared():
    """dispatch and shard, of which 'all' has one rank; ranks and devices by results made up."""
    done = run("bench", "all", "batch", "--quick", "--seconds", "0.01", "--json", "--report", "some.html")
    results = json.loads(done.stdout)["results"]
    named = {(r["suite"], r["case"]) for r in results}
    check(named >= {("dispatch", "a batch of one"), ("shard", "lookup, batch"), ("shard", "backward, batch, cut")}, named)
    check(all(r["ns"] > 0 and r["threads"] >= 1 and "batch" in r["case"] for r in results), results)
    listed = run("bench", "all", "batch", "--list").stdout
    check({tuple(line.split(None, 1)) for line in listed.strip().split("\n")} == named, listed)
    charts = "return ['dispatch', 'shard'].map(n => [document.querySelectorAll('#chart-' + n + ' rect').length, document.querySelectorAll('#' + n + ' tbody tr').length])"
    asked = open_page("some.html", charts)
    check(asked is None or all(rects >= 1 and rows >= 1 for rects, rows in asked), asked)
    open("before.json", "w").write(done.stdout)
    text = run("bench", "--from", "before.json", "--compare", "before.json").stdout
    check(f"{len(results)} cases are in both; the middle one is 1.00 times" in text, text)
    own = json.loads(run("bench", "shard", "--engine", "self", "--rows", "64", "--dim", "8", "--indices", "64", "--runs", "1", "--report", "own.html", "--json").stdout)
    check(own["command"].startswith("sheaf bench shard --engine self") and len(own["results"]) == 13 and os.path.exists("own.html"), own)
    ranks = [{"suite": "shard", "case": name, "ranks": 2, "threads": 1, "ns": 4e5, "bytes_sent": 1000, "local_ns": 1e5, "engine_ns": 2e5, "engine_ratio": 1.5}
             for name in ("lookup, row, output cut", EVIL)]
    json.dump({"machine": {"cpu": "x"}, "ceilings": [], "results": ranks}, open("ranks.json", "w"))
    run("bench", "--from", "ranks.json", "--report", "ranks.html")
    asked = open_page("ranks.html", charts)
    check(asked is None or asked == [[0, 0], [6, 2]], asked)
    device = [result(f"bag_sum-f32-D{dim}-131072x64-uniform", 1, 0.8, suite="cuda", ceiling="copy") for dim in (32, 128)]
    copies = [{"ceiling": "copy", "row_bytes": 0, "threads": 1, "gbps": 4000.0, "way": "the device's own copy"}]
    json.dump({"machine": {"cpu": "x", "device": "A Device"}, "ceilings": copies, "results": device}, open("device.json", "w"))
    run("bench", "--from", "device.json", "--report", "device.html")
    asked = open_page("device.html", "return [document.querySelector('h1').textContent, document.querySelectorAll('#chart-fraction rect').length, document.querySelectorAll('#chart-scaling').length]")
    check(asked is None or (asked[0].endswith("on A Device") and asked[1:] == [2, 0]), asked)


def check_a_page_of_a_trace():
    events = [{"name": f"op{i % 9}", "ph": "X", "pid": 1, "tid": i % 2, "ts": 10.5 * i, "dur": 9.0, "args": {"bytes": 9000, "sku": "k"}} for i in range(300)]
    events += [{"name": EVIL, "ph": "X", "tid": 0, "ts": 1e4, "dur": 1}, {"ph": "M"}, {"name": 3, "ph": "X"}, 7]
    json.dump({"traceEvents": events}, open("trace.json", "w"))
    text = run("trace", "view", "trace.json", "--report", "trace.html").stdout
    check("301 calls of 10 ops on 2 threads" in text and "3 entries" in text, text)
    ops = json.loads(run("trace", "view", "trace.json", "--json").stdout)["ops"]
    check(sum(op["calls"] for op in ops) == 301 and abs(ops[0]["gbps"] - 1.0) < 1e-9, ops[0])
    check(EVIL not in open("trace.html").read(), "harm")
    shutil.copy("trace.json", b"caf\xe9.json")
    run("trace", "view", os.fsdecode(b"caf\xe9.json"), "--report", "odd.html")
    check("caf\\xe9.json" in open("odd.html", encoding="utf-8").read(), "a title of any bytes")
    asked = open_page("trace.html", """
      const rects = () => document.querySelectorAll("#chart-timeline rect").length, all = rects();
      document.querySelector(".tools button").click(); const near = rects();
      return { all, near, ops: document.querySelectorAll("#ops tbody tr").length, scripts: document.scripts.length };""")
    check(asked is None or (asked["all"] > 200 and 0 < asked["near"] < asked["all"] and asked["ops"] == 10 and asked["scripts"] == 3), asked)
    for i in range(2):
        events.append({"name": "long", "ph": "X", "tid": 0, "ts": 1.0, "dur": 1e308, "args": {"bytes": 1e308}})
    json.dump(events, open("long.json", "w"))
    ops = {op["op"]: op for op in json.loads(run("trace", "view", "long.json", "--json", "--report", "long.html").stdout)["ops"]}
    check(len(ops) == 11 and ops["long"]["total_us"] is None and ops["op1"]["calls"] > 0, ops["long"])
    asked = open_page("long.html", "return document.querySelectorAll('#ops tbody tr').length")
    check(asked is None or asked == 11, asked)
    json.dump([], open("none.json", "w"))
    run("trace", "view", "none.json", "--report", "none.html")
    asked = open_page("none.html", "return document.querySelectorAll('#chart-timeline svg').length")
    check(asked is None or asked == 1, asked)


def check_what_is_no_result_is_refused():
    for content in ("", "{}", "[]", '{"results": 3}', '{"traceEvents": 3}', "no JSON"):
        open("bad.json", "w").write(content)
        run("bench", "--from", "bad.json", "--report", "p.html", code=1)
        run("bench", "small", "--compare", "bad.json", code=1)
        if content != "[]":
            run("trace", "view", "bad.json", code=1)
    for words in (["bench", "--report", "p.html", "--from"], ["trace", "view"]):
        text = run(*words, "missing.json", code=1).stderr
        check(text.endswith("'missing.json' cannot be read: No such file or directory\n"), text)
    json.dump({"results": [3, {"case": 4}, {}, None]}, open("odd.json", "w"))
    run("bench", "--from", "odd.json", "--compare", "odd.json", "--report", "odd.html")
    run("bench", "--from", "odd.json", code=2)
    run("bench", "--from", "odd.json", "--report", "missing/p.html", code=1)
    check(not os.path.exists("p.html"), "nothing was written")
    asked = open_page("odd.html", "return 1")
    check(asked in (None, 1), asked)


names = sys.argv[3:]
for name, function in list(globals().items()):
    if name.startswith("check_") and (not names or name in names):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            function()
            os.chdir("/")
        print(name)
print("all checks passed" if failures == 0 else f"{failures} checks failed")
sys.exit(failures != 0)
