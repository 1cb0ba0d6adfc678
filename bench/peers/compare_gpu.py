"""bench/peers/compare_gpu.py: Sheaf beside PyTorch on a CUDA device: the same tensors, in turn, on cold caches.

Usage: compare_gpu.py [--library build/libsheaf.so] [--runs 15] [words]     cases whose names hold every word

Needs PyTorch with CUDA. Before every run 256 MB are written, so that the second-level cache holds nothing of use; times
are those between two events, medians. Results must agree.
"""
import argparse
import statistics

import torch
from torch.nn import functional

import sheaf_library
from sheaf_library import DTYPES, EMBEDDING_KINDS, SEGMENT_KINDS, Device, Library, Plan

ROWS, N = 10_000_000, 4 << 20
TYPES = {"f32": torch.float32, "f16": torch.float16}


class GpuPlan(Plan):
  """A plan over tensors of a CUDA device, on PyTorch's own stream."""

  def _allocate(self, count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")

  @staticmethod
  def _device(tensor):
    return Device(2, tensor.device.index)

  def __call__(self):
    place = self.workspace.data_ptr() if self.workspace is not None else None
    stream = torch.cuda.current_stream().cuda_stream
    arguments = sheaf_library.c.byref(self.arguments)
    self.library.check(self.run(self.handle, place, self.workspace_bytes, stream, arguments))

  def close(self):
    self.library.functions.sheaf_plan_free(self.handle)
    self.workspace = None


def power_law(count, values, exponent):
  """Numbers below `values`: uniform, or by inverse of a power law's distribution, scattered by a fixed permutation."""
  unit = torch.rand(count, device="cuda", dtype=torch.float64)
  if not exponent:
    return (unit * values).long().clamp_(max=values - 1)
  low, high = 1.0, float(values + 1) ** (1 - exponent)
  rank = (low + unit * (high - low)) ** (1 / (1 - exponent))
  return (rank.long().clamp_(1, values) - 1) * 7919 % values


def rows(count, dim, dtype):
  return (torch.rand(count, dim, device="cuda") * 2 - 1).to(TYPES[dtype])


def bag_case(library, backward, dtype, dim, exponent, bags, length):
  table = rows(ROWS, dim, dtype)
  indices = power_law(bags * length, ROWS, exponent)
  offsets = torch.arange(0, bags * length + 1, length, device="cuda")
  out = rows(bags, dim, dtype)
  kind = EMBEDDING_KINDS["bag_sum_backward" if backward else "bag_sum"]
  desc = dict(device=Device(2, 0), kind=kind, dtype=DTYPES[dtype], index_dtype=DTYPES["i64"], dim=dim, rows=ROWS,
              indices=bags * length, bags=bags, bag_form=1)  # offsets with the end
  operands = [("table_grad" if backward else "table", table, dtype), ("indices", indices, "i64"),
              ("offsets", offsets, "i64"), ("grad_out" if backward else "out", out, dtype)]
  plan = GpuPlan(library, "embedding", desc, operands, 0)
  if backward:
    expanded = out.repeat_interleave(length, 0)  # not timed
    return plan, {"torch.index_add": lambda: table.index_add_(0, indices, expanded)}, None
  peer = lambda: functional.embedding_bag(indices, table, offsets, mode="sum", include_last_offset=True)
  return plan, {"torch.embedding_bag": peer}, out


def lookup_case(library, dim):
  table, indices = rows(ROWS, dim, "f32"), power_law(131072, ROWS, 0)
  out = rows(131072, dim, "f32")
  desc = dict(device=Device(2, 0), kind=EMBEDDING_KINDS["lookup"], dtype=DTYPES["f32"], index_dtype=DTYPES["i64"],
              dim=dim, rows=ROWS, indices=131072)
  operands = [("table", table, "f32"), ("indices", indices, "i64"), ("out", out, "f32")]
  plan = GpuPlan(library, "embedding", desc, operands, 0)
  return plan, {"torch.embedding": lambda: functional.embedding(indices, table),
                "torch.index_select": lambda: torch.index_select(table, 0, indices)}, out


def segment_case(library, mode, exponent):
  groups, dim = N // 16, 64
  backward, unsorted = mode.endswith("backward"), mode.startswith("unsorted")
  ids = power_law(N, groups, exponent)
  if not unsorted:
    ids = ids.sort().values
  data, out = rows(N, dim, "f32"), rows(groups, dim, "f32")
  desc = dict(device=Device(2, 0), kind=SEGMENT_KINDS[mode], dtype=DTYPES["f32"], index_dtype=DTYPES["i64"], rows=N,
              dim=dim, segments=groups)
  names = ("data_grad", "grad_out") if backward else ("data", "out")
  plan = GpuPlan(library, "segment", desc, [(names[0], data, "f32"), ("ids", ids, "i64"), (names[1], out, "f32")], 0)
  if backward:
    return plan, {"torch.index_select": lambda: torch.index_select(out, 0, ids)}, data
  reducer = "max" if mode.endswith("max") else "sum"
  lengths = torch.bincount(ids, minlength=groups)
  peers = {}
  if not unsorted:
    peers["torch.segment_reduce"] = lambda: torch.segment_reduce(data, reducer, lengths=lengths, unsafe=True)
  if reducer == "sum":
    peers["torch.index_add"] = lambda: torch.zeros_like(out).index_add_(0, ids, data)
  else:
    wide = ids[:, None].expand(-1, dim)
    peers["torch.scatter_reduce"] = lambda: torch.zeros_like(out).scatter_reduce_(0, wide, data, "amax",
                                                                                  include_self=False)
  return plan, peers, out


def cases():
  for dtype, dim, exponent, bags, length in (
      ("f32", 32, 0, 1024, 64), ("f32", 32, 0, 131072, 1), ("f32", 32, 0, 131072, 64), ("f16", 32, 0, 131072, 64),
      ("f32", 32, 1.05, 131072, 64), ("f32", 128, 0, 1024, 64), ("f32", 128, 0, 131072, 1),
      ("f32", 128, 0, 131072, 64), ("f16", 128, 0, 131072, 64), ("f32", 128, 1.05, 131072, 64)):
    yield (f"bag_sum-{dtype}-D{dim}-{bags}x{length}-{exponent or 'uniform'}", bag_case,
           (False, dtype, dim, exponent, bags, length))
  for dim, exponent, bags, length in ((32, 0, 1024, 64), (32, 0, 131072, 1), (32, 0, 131072, 64),
                                      (32, 1.05, 131072, 64), (128, 0, 131072, 1)):
    yield (f"bag_sum_backward-f32-D{dim}-{bags}x{length}-{exponent or 'uniform'}", bag_case,
           (True, "f32", dim, exponent, bags, length))
  for mode in ("segment_sum", "segment_max", "unsorted_segment_sum", "unsorted_segment_max"):
    for exponent in (0, 1.05):
      yield f"{mode}-f32-D64-N{N}-{exponent or 'uniform'}", segment_case, (mode, exponent)
  yield f"segment_sum_backward-f32-D64-N{N}-uniform", segment_case, ("segment_sum_backward", 0)
  for dim in (32, 128):
    yield f"lookup-f32-D{dim}-131072-uniform", lookup_case, (dim,)


def timed(call, flush):
  flush.fill_(1)
  begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
  begin.record()
  call()
  end.record()
  torch.cuda.synchronize()
  return begin.elapsed_time(end) * 1e3


def check(name, plan, peer, out):
  if out is None:
    return
  plan()
  ours = out.clone()
  theirs = peer()
  theirs = torch.where(torch.isfinite(theirs), theirs, ours)  # what is empty differs
  scale = max(ours.abs().max().item(), 1)
  worst = (ours.float() - theirs.float()).abs().max().item()
  if not worst <= 0.02 * scale:
    raise ValueError(f"{name} and sheaf differ by {worst}")


def main():
  options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  options.add_argument("--library", default="build/libsheaf.so")
  options.add_argument("--runs", type=int, default=15)
  options.add_argument("words", nargs="*")
  options = options.parse_args()
  library = Library(options.library)
  flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
  print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; microseconds, medians of {options.runs}")
  print(f"{'case':54} {'sheaf':>8}  peers")
  for name, make, arguments in cases():
    if not all(word in name for word in options.words):
      continue
    torch.manual_seed(3)
    plan, peers, out = make(library, *arguments)
    kept = {}
    for peer, call in peers.items():
      try:
        check(peer, plan, call, out)
        kept[peer] = call
      except RuntimeError as error:
        print(f"  {peer} does not do this: {str(error).splitlines()[0][:100]}")
    calls = {"sheaf": plan, **kept}
    times = {who: [] for who in calls}
    for run in range(-2, options.runs):
      for who, call in calls.items():
        microseconds = timed(call, flush)
        if run >= 0:
          times[who].append(microseconds)
    median = {who: statistics.median(values) for who, values in times.items()}
    beside = ", ".join(f"{who} {median[who]:.1f} ({median[who] / median['sheaf']:.2f} x)" for who in kept)
    print(f"{name:54} {median['sheaf']:8.1f}  {beside}", flush=True)
    plan.close()
    del plan, peers, calls, kept, out
    torch.cuda.empty_cache()


if __name__ == "__main__":
  main()
