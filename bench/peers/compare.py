"""bench/peers/compare.py: Sheaf beside PyTorch and FBGEMM, in one process, in turn. `compare.py --help` says more."""
import argparse
import glob
import importlib.util
import json
import os
import random
import resource
import statistics
import sys
import time
import traceback


def share_openmp():
  """Starts again with PyTorch's own OpenMP library in front, so that there is one set of threads and not two that get
  in each other's way; and with an allocator that keeps what it has, so that no result costs page faults."""
  if "SHEAF_PEERS_STARTED" in os.environ:
    return
  torch = importlib.util.find_spec("torch")
  if torch is None:
    sys.exit("compare.py: this Python has no PyTorch; 'make bench-peers' sets up one that has")
  torch_folder = torch.submodule_search_locations[0]
  found = glob.glob(os.path.join(torch_folder, "lib", "libgomp*")) + \
    glob.glob(os.path.join(os.path.dirname(torch_folder), "torch.libs", "libgomp*"))
  preload = ":".join(found[:1] + [os.environ.get("LD_PRELOAD", "")]).strip(":")
  environment = dict(os.environ, SHEAF_PEERS_STARTED="1", LD_PRELOAD=preload,
                     MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40))  # results on pages that are there
  os.execve(sys.executable, [sys.executable] + sys.argv, environment)


if __name__ == "__main__":
  share_openmp()

import torch
from torch.nn import functional

try:
  import fbgemm_gpu
  FBGEMM = fbgemm_gpu.__version__
except Exception as error:  # any: it may be missing, or made for another PyTorch
  FBGEMM = None
  print(f"FBGEMM is left out: {error}", file=sys.stderr)

import contenders
import problems
from ceiling import Ceiling
from sheaf_library import Library

CEILINGS = {"bag_sum_backward": "update", "segment_sum": "read", "unsorted_segment_sum": "read",
            "segment_sum_backward": "copy"}  # every other mode gathers

FAR_BEHIND = 4  # times our time

# ---- Measuring -------------------------------------------------------------------------------------------------------


def timed(call, number):
  """Seconds of one call; what it needs before is not counted. A call that the kernel interrupted is repeated, as
  `sheaf bench` does."""
  for _ in range(4):
    if hasattr(call, "before"):
      call.before(number)
    interruptions = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    start = time.perf_counter()
    call(number)
    seconds = time.perf_counter() - start
    if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == interruptions:
      break
  return seconds


def check_agreement(name, result, data):
  """Contenders that do not compute the same are not worth comparing. (Gradients are left to the tests, and FBGEMM's
  quantised rows are its own.)"""
  p = data.problem
  quantized = p.dtype in ("int8", "int4")
  if p.mode in ("bag_sum_backward", "segment_sum_backward") or (name.startswith("fbgemm") and quantized):
    return
  ours, theirs = data.expected.double(), result.double().view(data.expected.shape)
  worst = (ours - theirs).abs().max().item()
  if worst > 0.02 * max(ours.abs().max().item(), 1):
    raise ValueError(f"{name} and sheaf differ by {worst}")


def drop_failing(calls, data=None):
  """Without the calls that a library refuses. Each is run a first time here; the results must agree."""
  kept = {}
  for name, call in calls.items():
    try:
      if hasattr(call, "before"):
        call.before(0)
      result = call(0)
    except (RuntimeError, NotImplementedError, TypeError) as error:
      if name == "sheaf":
        raise
      print(f"  {name} does not do this: {str(error).splitlines()[0][:100]}", file=sys.stderr)
      continue
    kept[name] = call
    if data and name == "sheaf":
      data.expected = data.out if result is None else result.clone()
    elif data:
      check_agreement(name, result, data)
  return kept


def start_ceiling(options, data):
  p = data.problem
  if not options.stream:
    return None
  kind = CEILINGS.get(p.mode, "gather")
  size = p.table_bytes // 128 * 64 if kind == "copy" else p.table_bytes // 64 * 64
  ceiling = Ceiling(options.stream, kind, data.threads, data.table.data_ptr(), p.row_bytes,
                    data.table.data_ptr() + size, size)
  data.ceiling_sets = [torch.unique(s)[torch.randperm(torch.unique(s).numel())] for s in data.index_sets] \
    if kind == "update" else data.index_sets
  ceiling.choose(data.ceiling_sets)
  return ceiling


def take_turns(options, data, calls, ceiling):
  """Seconds per contender, and GB/s per way of the ceiling, all measured in turn on index sets in rotation. Each round
  has an order of its own, since each finds in the caches what the one before it left. A peer that is far behind after
  three rounds runs no further: it would take most of the time, and leave nothing in the caches for the others. (What it
  is compared with are the rounds that it took part in.)"""
  sets, step, order = len(data.index_sets), 0, random.Random(1)
  seconds, rates, racing = {name: [] for name in calls}, [], list(calls)
  start = time.perf_counter()
  while len(rates) < options.runs or (len(rates) < 200 and time.perf_counter() - start < options.seconds):
    if len(rates) >= 3 and time.perf_counter() - start > 10:
      break
    if len(rates) == 3 and "sheaf" in calls:
      limit = FAR_BEHIND * statistics.median(seconds["sheaf"])
      racing = [name for name in racing if statistics.median(seconds[name]) < limit]
    for name in order.sample(racing, len(racing)):
      seconds[name].append(timed(calls[name], step % sets))
      step += 1
    if ceiling:
      ceiling.point(data.ceiling_sets[step % sets])
      step += 1
    rates.append(ceiling.run() if ceiling else [0])
    step += sets % (len(racing) + 1) == 0  # so that each meets every set
  return seconds, max(statistics.median(way) for way in zip(*rates))


def measure(options, library, table, problem, threads):
  torch.set_num_threads(threads)
  data = contenders.Data(problem, table.take(problem), problems.make_index_sets(problem), threads)
  ours, plan = contenders.sheaf_plan(library, data)
  calls = {"sheaf": ours, **contenders.torch_calls(data)}
  if FBGEMM:
    calls.update(contenders.fbgemm_calls(data))
  with torch.no_grad():
    calls = drop_failing(calls, data)
    ceiling = start_ceiling(options, data)
    seconds, ceiling_gbps = take_turns(options, data, calls, ceiling)
  useful = problems.useful_bytes(problem, data.index_sets[0])
  medians = {name: statistics.median(values) for name, values in seconds.items()}
  result = {"suite": problem.suite, "case": problem.name, "dtype": problem.dtype, "index": "i64", "threads": threads,
            "sku": plan.sku, "runs": len(seconds["sheaf"]), "ns": 1e9 * medians["sheaf"],
            "gbps": useful / medians["sheaf"] / 1e9, "ceiling": CEILINGS.get(problem.mode, "gather"),
            "ceiling_gbps": ceiling_gbps or None}
  result["fraction"] = result["gbps"] / ceiling_gbps if ceiling_gbps else None
  result["peers"] = {name: {"ns": 1e9 * value, "runs": len(seconds[name]),
                            "ratio": value / statistics.median(seconds["sheaf"][:len(seconds[name])]),
                            "fraction": useful / value / 1e9 / ceiling_gbps if ceiling_gbps else None}
                     for name, value in medians.items() if name != "sheaf"}
  plan.close()
  if problem.mode in ("bag_sum_backward", "segment_sum_backward"):
    table.key = None  # its content has changed
  return result


# ---- The ceilings against an independent figure ----------------------------------------------------------------------


def check_ceilings(options, library, table, threads):
  """Our ceilings beside PyTorch doing the same: reading (sum), copying, gathering rows."""
  torch.set_num_threads(threads)
  problem = problems.Problem("lookup", "lookup", "f32", 128)
  rows = table.take(problem)
  flat, sets, half = rows.view(-1), problems.make_index_sets(problem), problem.table_bytes // 2
  out = torch.zeros(problem.count, problem.dim)
  moved = problem.count * (problem.row_bytes + 8)
  bags = torch.arange(0, problem.count, 500)
  checks = [
    ("read", 0, flat.numel() * 4, {"torch.sum": lambda n: flat.view(torch.int64).sum()}),
    ("copy", flat.numel() * 2, flat.numel() * 4,
     {"torch.copy_": lambda n: flat[flat.numel() // 2:].copy_(flat[:flat.numel() // 2])}),
    ("gather", 0, moved,
     {"torch.embedding_bag of 500": lambda n: functional.embedding_bag(sets[n], rows, bags, mode="sum")}),
    ("gather", 0, moved + out.numel() * 4,
     {"torch.index_select (reads and writes)": lambda n: torch.index_select(rows, 0, sets[n], out=out)}),
  ]
  results = []
  for kind, size, peer_bytes, calls in checks:
    ceiling = Ceiling(options.stream, kind, threads, rows.data_ptr(), problem.row_bytes, rows.data_ptr() + half,
                      size or problem.table_bytes)
    data = argparse.Namespace(index_sets=sets, ceiling_sets=sets)
    ceiling.choose(sets)
    with torch.no_grad():
      seconds, ours = take_turns(options, data, drop_failing(calls), ceiling)
    for name, values in seconds.items():
      peer = peer_bytes / statistics.median(values) / 1e9
      results.append({"ceiling": kind, "threads": threads, "gbps": ours, "peer": name, "peer_gbps": peer})
      print(f"ceiling {kind:7} {threads} threads: ours {ours:6.1f} GB/s, {name} {peer:6.1f} GB/s", file=options.text)
  return results


# ---- Report ----------------------------------------------------------------------------------------------------------


def print_result(options, result):
  best = min(result["peers"].values(), key=lambda peer: peer["ns"], default=None)
  fraction = f"{result['fraction']:.2f} {result['ceiling']}" if result["fraction"] else ""
  peers = "  ".join(f"{name} {peer['ns'] / 1e3:.0f} us ({peer['ratio']:.2f}x)"
                    for name, peer in sorted(result["peers"].items(), key=lambda item: item[1]["ns"]))
  mark = "  SLOWER" if best and best["ratio"] < options.slack else ""
  print(f"{result['suite']:9}{result['case']:44}{result['threads']:2}  {result['ns'] / 1e3:9.1f} us {fraction:12}  "
        f"{peers}{mark}", file=options.text, flush=True)


def worst_ratio(result):
  return min((peer["ratio"] for peer in result["peers"].values()), default=None)


def try_again(options, results, measure_again):
  """Replaces what was not clearly faster than a peer by the median of three measurements, of which it is one. (Those
  that were only just faster, too: otherwise bad luck would be forgiven and good luck kept.) Returns how many failed."""
  failed = 0
  for at, result in enumerate(results):
    if not result["peers"] or worst_ratio(result) >= 1 / options.slack:
      continue
    try:
      tries = sorted([result, measure_again(result), measure_again(result)], key=worst_ratio)
    except Exception:  # the first measurement stands
      failed += 1
      print(f"FAILED the second time: {result['case']}\n{traceback.format_exc()}", file=sys.stderr)
      continue
    results[at] = dict(tries[1], tries=[worst_ratio(tried) for tried in tries])
    print_result(options, results[at])
  return failed


def summarize(options, results):
  compared = [r for r in results if r["peers"]]
  ratios = sorted((worst_ratio(r), r["case"], r["threads"]) for r in compared)
  slower = [entry for entry in ratios if entry[0] < options.slack]
  print(f"\n{len(compared)} cases compared, {len(slower)} slower than a peer by more than {1 - options.slack:.0%} "
        f"({sum('tries' in r for r in compared)} measured three times)", file=options.text)
  for ratio, case, threads in slower:
    print(f"  {ratio:.2f}x  {case}, {threads} threads", file=options.text)


def available_memory():
  with open("/proc/meminfo", encoding="ascii") as file:
    return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def wanted_problems(options):
  chosen = problems.target_problems()
  if options.quick:
    chosen = [p for p in chosen if p.rows <= problems.M]
  else:
    chosen += problems.grid_problems(sample=not options.grid)
  said = lambda p: f"{p.suite} {p.name}{'' if p.warm else ' cold'}".lower()
  return [p for p in chosen if all(word.lower() in said(p) for word in options.filter)]


def parse_options():
  parser = argparse.ArgumentParser(description="Runs the same cases through Sheaf, PyTorch and FBGEMM in turn and "
                                   "prints how many times as long each peer takes (above 1: Sheaf is faster).")
  parser.add_argument("--library", default="build/libsheaf.so", help="Sheaf's shared library")
  parser.add_argument("--stream", default="", help="cli/bench_stream.c as a shared library, for the ceilings")
  parser.add_argument("--threads", type=int, default=0, help="default: one, then as many as there are cores")
  parser.add_argument("--quick", action="store_true", help="the cases with targets, small tables, few runs")
  parser.add_argument("--grid", action="store_true", help="the whole grid, cold and warm (4200 cases)")
  parser.add_argument("--filter", action="append", default=[],
                      help="only cases that hold this (several: all of them); cold: those that are not warm")
  parser.add_argument("--runs", type=int, default=0, help="runs of each, at least; default 15, with --quick 5")
  parser.add_argument("--seconds", type=float, default=0.3, help="how long to measure a case, at least")
  parser.add_argument("--slack", type=float, default=0.97, help="a ratio below this is called slower")
  parser.add_argument("--json", action="store_true", help="one object on stdout; the lines go to stderr")
  parser.add_argument("words", nargs="*", help="as --filter")
  options = parser.parse_args()
  options.filter += options.words
  options.runs = options.runs or (5 if options.quick else 15)
  options.text = sys.stderr if options.json else sys.stdout
  return options


def main():
  options = parse_options()
  library = Library(os.path.abspath(options.library))
  table = problems.Table(library)
  thread_counts = [options.threads] if options.threads else sorted({1, os.cpu_count()})
  machine = {"cpu": library.cpu(), "cores": os.cpu_count(), "version": library.version(), "torch": torch.__version__,
             "fbgemm": FBGEMM, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
  print(f"Sheaf {machine['version']}, PyTorch {machine['torch']}, FBGEMM {FBGEMM or 'not there'}, {machine['cpu']}",
        file=options.text)
  ceilings, results, failed = [], [], 0
  for threads in thread_counts if options.stream and not options.filter else []:
    ceilings += check_ceilings(options, library, table, threads)
  wanted = {problem.name: problem for problem in wanted_problems(options)}
  for problem in wanted.values():
    if problem.table_bytes * 1.5 + 2e9 > available_memory() + (len(table.block) if table.block else 0):
      print(f"passed over for want of memory: {problem.name}", file=sys.stderr)
      continue
    for threads in thread_counts:
      try:
        results.append(measure(options, library, table, problem, threads))
        print_result(options, results[-1])
      except Exception:  # one case must not end a run of hours
        failed += 1
        print(f"FAILED: {problem.name}\n{traceback.format_exc()}", file=sys.stderr)
  failed += try_again(options, results, lambda r: measure(options, library, table, wanted[r["case"]], r["threads"]))
  summarize(options, results)
  if options.json:
    json.dump({"machine": machine, "ceilings": ceilings, "results": results}, sys.stdout, indent=2)
    print()
  table.close()
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
