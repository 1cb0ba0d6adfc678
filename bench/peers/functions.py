"""bench/peers/functions.py: the Python package beside PyTorch's own functions on the CPU, in one process, in turn.

Forward and backward, as a user calls them: functions of sheaf.torch beside torch.nn.functional and torch, each with its
own allocation and autograd. Prints microseconds of each and how many times as long PyTorch takes; draws the picture;
then the cost of a call on one row.
"""
import argparse
import json
import os
import statistics
import sys
import time

from compare import share_openmp, timed

if __name__ == "__main__":
  # Results of past calls are used again by either side; else whether an address is new, and has to be given pages by
  # the system, is a matter of chance that decides everything.
  os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
  os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 32))
  share_openmp()

import torch
import torch.nn.functional as F

import sheaf
import sheaf.torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
ROWS, DIM, BAGS, LENGTH, SETS = 1_000_000, 64, 4096, 20, 5
SMALL_ROWS = 100_000  # tables whose gradient is made whole
SEGMENT_ROWS, SEGMENTS = 500_000, 30_000


class Case:
  """Two calls, ours and theirs; each takes the number of an index set."""

  def __init__(self, name, ours, theirs, exact=True):
    self.name, self.calls, self.exact = name, {"sheaf": ours, "torch": theirs}, exact


def forward_cases(dtype):
  table = torch.randn(ROWS, DIM).to(DTYPES[dtype])
  lookups = [torch.randint(0, ROWS, (BAGS * LENGTH,)) for _ in range(SETS)]
  bags = [torch.randint(0, ROWS, (BAGS, LENGTH)) for _ in range(SETS)]
  weights = torch.rand(BAGS, LENGTH).to(DTYPES[dtype])
  yield Case(f"embedding {dtype}", lambda n: sheaf.torch.embedding(lookups[n], table),
             lambda n: F.embedding(lookups[n], table))
  for mode in ("sum", "mean", "max"):
    yield Case(f"embedding_bag {mode} {dtype}", lambda n, m=mode: sheaf.torch.embedding_bag(bags[n], table, mode=m),
               lambda n, m=mode: F.embedding_bag(bags[n], table, mode=m), False)
  padded = [torch.where(torch.rand(b.shape) < 0.25, 0, b) for b in bags]
  yield Case(f"embedding_bag sum, padding_idx {dtype}",
             lambda n: sheaf.torch.embedding_bag(padded[n], table, mode="sum", padding_idx=0),
             lambda n: F.embedding_bag(padded[n], table, mode="sum", padding_idx=0), False)
  yield Case(f"embedding_bag sum, weights {dtype}",
             lambda n: sheaf.torch.embedding_bag(bags[n], table, mode="sum", per_sample_weights=weights),
             lambda n: F.embedding_bag(bags[n], table, mode="sum", per_sample_weights=weights), False)


def backward_cases():
  """The gradient of a table alone: the graphs are there, and stay."""
  table = torch.randn(SMALL_ROWS, DIM, requires_grad=True)
  lookups = [torch.randint(0, SMALL_ROWS, (BAGS * LENGTH,)) for _ in range(SETS)]
  bags = [torch.randint(0, SMALL_ROWS, (BAGS, LENGTH)) for _ in range(SETS)]

  def gradient(function, sets, grad, **options):
    outputs = [function(s, table, **options) for s in sets]
    if options["sparse"]:  # PyTorch leaves adding up to whoever uses the gradient
      return lambda n: torch.autograd.grad(outputs[n], table, grad, retain_graph=True)[0].coalesce()
    return lambda n: torch.autograd.grad(outputs[n], table, grad, retain_graph=True)[0]

  for sparse in (False, True):
    kind = "sparse, coalesced" if sparse else "dense"
    grad = torch.randn(BAGS * LENGTH, DIM)
    yield Case(f"embedding backward, {kind}", gradient(sheaf.torch.embedding, lookups, grad, sparse=sparse),
               gradient(F.embedding, lookups, grad, sparse=sparse), False)
    for mode in ("sum", "mean") + (() if sparse else ("max",)):
      grad = torch.randn(BAGS, DIM)
      yield Case(f"embedding_bag {mode} backward, {kind}",
                 gradient(sheaf.torch.embedding_bag, bags, grad, sparse=sparse, mode=mode),
                 gradient(F.embedding_bag, bags, grad, sparse=sparse, mode=mode), False)


def segment_cases():
  data = torch.randn(SEGMENT_ROWS, DIM)
  ids = [torch.randint(0, SEGMENTS, (SEGMENT_ROWS,)) for _ in range(2)]
  wide = [i.unsqueeze(1).expand(-1, DIM) for i in ids]
  lengths = [torch.bincount(i, minlength=SEGMENTS) for i in ids]
  yield Case("unsorted_segment_sum, index_add", lambda n: sheaf.unsorted_segment_sum(data, ids[n % 2], SEGMENTS),
             lambda n: torch.zeros(SEGMENTS, DIM).index_add_(0, ids[n % 2], data), False)
  for ours, theirs in (("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin"), ("prod", "prod")):
    function = getattr(sheaf, f"unsorted_segment_{ours}")
    start = torch.ones if ours == "prod" else torch.zeros
    yield Case(f"unsorted_segment_{ours}, scatter_reduce {theirs}",
               lambda n, f=function: f(data, ids[n % 2], SEGMENTS),
               lambda n, t=theirs, s=start: s(SEGMENTS, DIM).scatter_reduce(0, wide[n % 2], data, t,
                                                                            include_self=False), False)
  for reduce in ("sum", "mean", "max", "min", "prod"):
    yield Case(f"segment_reduce {reduce}",
               lambda n, r=reduce: sheaf.torch.segment_reduce(data, r, lengths=lengths[n % 2]),
               lambda n, r=reduce: torch.segment_reduce(data, r, lengths=lengths[n % 2]), False)


def check(case):
  """Contenders that do not compute the same are not worth comparing."""
  ours, theirs = (call(0).to_dense().double() for call in case.calls.values())
  worst = (ours - theirs).nan_to_num(posinf=0, neginf=0).abs().max().item()
  if worst > (0 if case.exact else 0.03 * max(theirs.nan_to_num(posinf=0, neginf=0).abs().max().item(), 1)):
    raise ValueError(f"{case.name}: the results differ by {worst}")


def measure(case, seconds):
  times = {name: [] for name in case.calls}
  start, step = time.perf_counter(), 0
  while len(times["sheaf"]) < 5 or time.perf_counter() - start < seconds:
    for name, call in case.calls.items():
      times[name].append(timed(call, step % SETS))
    step += 1
  return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def small_calls(rounds):
  """Nanoseconds of a lookup of one row of 64 floats, in turn."""
  table, index = torch.rand(1000, DIM), torch.tensor([77])
  array, place, leaf = table.numpy(), index.numpy(), table.clone().requires_grad_()
  torch.set_num_threads(1)
  calls = {"sheaf.embedding, NumPy": lambda: sheaf.embedding(place, array),
           "array[index], NumPy": lambda: array[place],
           "sheaf.embedding, PyTorch tensors": lambda: sheaf.embedding(index, table),
           "sheaf.torch.embedding": lambda: sheaf.torch.embedding(index, table),
           "torch.nn.functional.embedding": lambda: F.embedding(index, table),
           "sheaf.torch.embedding, a graph recorded": lambda: sheaf.torch.embedding(index, leaf),
           "torch.nn.functional.embedding, a graph recorded": lambda: F.embedding(index, leaf)}
  times = {name: [] for name in calls}
  for _ in range(rounds):
    for name, call in calls.items():
      start = time.perf_counter_ns()
      for _ in range(5000):
        call()
      times[name].append((time.perf_counter_ns() - start) / 5000)
  return {name: statistics.median(values) for name, values in times.items()}


def draw(path, results, title):
  import matplotlib
  matplotlib.use("svg")
  matplotlib.rcParams["svg.hashsalt"] = "sheaf"
  from matplotlib import pyplot
  names, ratios = [r["case"] for r in results][::-1], [r["ratio"] for r in results][::-1]
  figure, axes = pyplot.subplots(figsize=(9, 0.22 * len(names) + 1.2))
  axes.barh(names, [ratio - 1 for ratio in ratios], left=1, height=0.7,
            color=["#2a6f97" if ratio >= 1 else "#c1666b" for ratio in ratios])
  for place, ratio in enumerate(ratios):
    faster = ratio >= 1
    axes.annotate(f"{ratio:.1f}" if faster else f"{ratio:.2f}", (ratio, place), xytext=(3 if faster else -3, 0),
                  textcoords="offset points", va="center", ha="left" if faster else "right", fontsize=7)
  axes.set_xscale("log")
  axes.set_xlim(min(0.5, min(ratios) * 0.9), max(ratios) * 1.5)
  ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128) if t <= max(ratios) * 1.5 and t >= axes.get_xlim()[0]]
  axes.set_xticks(ticks, [f"{t:g}x" for t in ticks])
  axes.minorticks_off()
  axes.axvline(1, color="black", linewidth=0.8)
  axes.tick_params(axis="y", labelsize=7)
  axes.set_ylim(-0.7, len(names) - 0.3)
  axes.set_title(title, fontsize=9)
  for side in ("top", "right"):
    axes.spines[side].set_visible(False)
  figure.tight_layout()
  figure.savefig(path, metadata={"Date": None})
  with open(path, encoding="utf-8") as file:
    lines = [line.rstrip() for line in file]
  with open(path, "w", encoding="utf-8") as file:
    file.write("\n".join(lines) + "\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--threads", type=int, default=os.cpu_count())
  parser.add_argument("--seconds", type=float, default=0.4, help="how long to measure a case, at least")
  parser.add_argument("--rounds", type=int, default=9, help="of the calls on one row")
  parser.add_argument("--svg", help="draw the ratios here")
  parser.add_argument("--json", help="write the figures here")
  parser.add_argument("words", nargs="*", help="only cases whose name holds one of these")
  options = parser.parse_args()
  torch.manual_seed(0)
  torch.set_num_threads(options.threads)
  sheaf.set_threads(options.threads)
  info = sheaf.info()
  title = f"PyTorch {torch.__version__}'s time over Sheaf {info['version']}'s, {info['cpu']}, {options.threads} threads"
  print(title)
  results = []
  for cases in [lambda d=dtype: forward_cases(d) for dtype in DTYPES] + [backward_cases, segment_cases]:
    for case in cases():
      if options.words and not any(word in case.name for word in options.words):
        continue
      check(case)
      times = measure(case, options.seconds)
      results.append({"case": case.name, **times, "ratio": times["torch"] / times["sheaf"]})
      print(f"{case.name:46} sheaf {times['sheaf']:9.0f} us   torch {times['torch']:9.0f} us   "
            f"{results[-1]['ratio']:6.2f}x", flush=True)
  calls = small_calls(options.rounds)
  print("\nA lookup of one row of 64 floats")
  for name, nanoseconds in calls.items():
    print(f"{name:48} {nanoseconds:8.0f} ns")
  if options.svg and results:
    draw(options.svg, results, title)
  if options.json:
    with open(options.json, "w", encoding="utf-8") as file:
      json.dump({"title": title, "results": results, "small_calls_ns": calls}, file, indent=2)
  return 0


if __name__ == "__main__":
  sys.exit(main())
