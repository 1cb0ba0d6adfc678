"""bench/peers/small_calls.py: a lookup of one row of 64 floats: `sheaf bench dispatch` beside PyTorch, in turn.

PyTorch is called from Python, as it is used: functional.embedding, and torch.embedding, which it calls. Sheaf is called
from C, by the command. Python's own share shows in the first line.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

ROWS, DIM = 1000, 64


def nanoseconds(call, count=20000):
  start = time.perf_counter_ns()
  for _ in range(count):
    call()
  return (time.perf_counter_ns() - start) / count


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--command", default="build/sheaf", help="the command `sheaf`")
  parser.add_argument("--rounds", type=int, default=9)
  options = parser.parse_args()
  torch.set_num_threads(1)
  table, index = torch.rand(ROWS, DIM), torch.tensor([77])
  leaf = torch.rand(ROWS, DIM, requires_grad=True)
  calls = {"a Python function that does nothing": lambda: None,
           "torch.embedding": lambda: torch.embedding(table, index),
           "functional.embedding": lambda: F.embedding(index, table),
           "functional.embedding, a graph recorded": lambda: F.embedding(index, leaf)}
  times = {}
  for _ in range(options.rounds):
    for name, call in calls.items():
      times.setdefault(name, []).append(nanoseconds(call))
    report = subprocess.run([options.command, "bench", "dispatch", "--seconds", "0.05", "--json"], check=True,
                            capture_output=True, text=True)
    for line in json.loads(report.stdout)["results"]:
      if line["case"].startswith(("plan run", "op, ", "Autograd")):
        times.setdefault("sheaf: " + line["case"], []).append(line["ns"])
  print(f"PyTorch {torch.__version__}, one thread; a lookup of a row of {DIM} floats, medians of {options.rounds}")
  for name, values in times.items():
    print(f"{name:42} {statistics.median(values):8.0f} ns")


if __name__ == "__main__":
  main()
