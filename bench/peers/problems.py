"""bench/peers/problems.py: cases that Sheaf and its peers are compared on, and their data."""
import dataclasses
import functools
import itertools

import numpy as np
import torch

from sheaf_library import ITEM_BYTES

M = 1000000
RUN_BYTES = 40 * M         # rows of one run, so that it takes milliseconds
TABLE_BYTES = 512 * M      # tables of the grid: far larger than any last-level cache
ROTATION_BYTES = 160 * M   # index sets are taken in turn; all together touch at least this much
PADDING_ONE_IN = 20
TORCH_TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def short(number):
  return f"{number // M}M" if number and number % M == 0 else str(number)


@dataclasses.dataclass
class Problem:
  """One case. `mode` is a kind of Sheaf's (bag_sum, segment_sum_backward ...), or weighted or padded, both of which are
  bag_sum. Names are those of `sheaf bench`."""
  suite: str
  mode: str
  dtype: str
  dim: int
  length: int = 0
  rows: int = M
  exponent: float = 0
  entries: int = 0
  segments: int = 0
  warm: bool = False

  @property
  def name(self):
    parts = [self.mode, self.dtype, f"D{self.dim}"]
    parts += [f"L{self.length}"] if self.length else []
    parts += [f"N{short(self.entries)}", f"S{short(self.segments)}"] if self.segments else [f"V{short(self.rows)}"]
    parts += [f"{self.exponent:.2f}" if self.exponent else "uniform"]
    return "-".join(parts + (["warm"] if self.warm else []))

  @property
  def row_bytes(self):
    return {"int8": self.dim + 8, "int4": (self.dim + 1) // 2 + 4}.get(self.dtype) or self.dim * ITEM_BYTES[self.dtype]

  @property
  def count(self):
    """Entries of a run, in whole bags."""
    entries = self.entries or min(max(RUN_BYTES // self.row_bytes, 4096), 2 * M)
    return -(-entries // self.length) * self.length if self.length else entries

  @property
  def bags(self):
    return self.count // self.length if self.length else 0

  @property
  def plain_dtype(self):
    return "f32" if self.dtype in ("int8", "int4") else self.dtype

  @property
  def table_bytes(self):
    return (self.count if self.segments else self.rows) * self.row_bytes


# ---- Lists -----------------------------------------------------------------------------------------------------------


def target_problems():
  """The cases that targets are set for, as far as a peer can do them."""
  bag = lambda mode, dtype, dim, length, **more: Problem("bag", mode, dtype, dim, length, **more)
  return [
    bag("bag_sum", "f32", 64, 20), bag("bag_mean", "f32", 64, 20), bag("weighted", "f32", 64, 20),
    bag("padded", "f32", 64, 20), bag("bag_max", "f32", 64, 80),
    bag("bag_sum", "f32", 128, 80), bag("bag_sum", "f32", 128, 80, exponent=1.05),
    bag("bag_sum", "f16", 128, 20), bag("bag_sum", "bf16", 128, 20), bag("bag_sum", "f64", 128, 20),
    bag("bag_sum", "int8", 128, 20), bag("bag_sum", "int4", 128, 20),
    Problem("lookup", "lookup", "f32", 128, entries=131072),
    Problem("lookup", "lookup", "f32", 128, entries=131072, rows=10 * M),
    bag("bag_sum", "f32", 128, 80, rows=10 * M), bag("bag_sum", "f32", 256, 80, rows=10 * M),
    Problem("backward", "bag_sum_backward", "f32", 128, 20, entries=40960),
    Problem("backward", "bag_sum_backward", "f32", 128, 20, entries=40960, exponent=1.05),
  ] + [Problem("segment", mode, "f32", 64, entries=M, segments=M // 16, exponent=exponent)
       for mode in ("segment_sum", "unsorted_segment_sum", "segment_sum_backward") for exponent in (0, 1.05)]


def grid_problems(sample):
  """Every width, length, spread, dtype and mode, cold and warm; with `sample` a spread-out part of them."""
  problems = []
  spreads = itertools.product(("f32", "f64", "f16", "bf16"), (16, 32, 64, 100, 128, 256, 1024), (1, 5, 20, 80, 500),
                              (0, 1.05, 1.15), (False, True))
  for dtype, dim, length, exponent, warm in spreads:
    for mode in ("bag_sum", "bag_mean", "bag_max", "weighted", "padded"):  # innermost: they share their indices
      problem = Problem("grid", mode, dtype, dim, length, exponent=exponent, warm=warm)
      problem.rows = (300000 if warm else TABLE_BYTES) // problem.row_bytes
      problem.entries = max(3 * M // problem.row_bytes, length) if warm else 0
      problems.append(problem)
  return problems[::37] if sample else problems


# ---- Data ------------------------------------------------------------------------------------------------------------


class Table:
  """Memory on huge pages that Sheaf and its peers all read; kept from case to case while it is large enough."""

  def __init__(self, library):
    self.library, self.block, self.key = library, None, None

  def take(self, problem):
    """Rows as a torch tensor [rows, dim] (quantised: uint8 [rows, row bytes])."""
    size = problem.table_bytes
    if self.block is None or len(self.block) < size or len(self.block) > 4 * size + TABLE_BYTES:
      self.close()
      self.block = self.library.allocate(size)
    key = (problem.dtype, problem.row_bytes if problem.dtype in ("int8", "int4") else 0, len(self.block))
    raw = torch.frombuffer(self.block, dtype=torch.uint8)
    if self.key != key:
      self._fill(raw, problem)
      self.key = key
    raw = raw[:size]
    return raw.view(-1, problem.row_bytes) if problem.dtype in ("int8", "int4") else \
      raw.view(TORCH_TYPES[problem.dtype]).view(-1, problem.dim)

  @staticmethod
  def _fill(raw, problem):
    torch.manual_seed(1)
    if problem.dtype in ("int8", "int4"):
      pattern = torch.randint(0, 256, (4099, problem.row_bytes), dtype=torch.uint8)
      tail = np.array([0.01, -1], np.float32 if problem.dtype == "int8" else np.float16).view(np.uint8)
      pattern[:, -len(tail):] = torch.from_numpy(tail)
    else:
      pattern = (2 * torch.rand(M + 7) - 1).to(TORCH_TYPES[problem.dtype])
    pattern = pattern.view(-1).view(torch.uint8)
    for at in range(0, raw.numel(), pattern.numel()):
      piece = raw[at:at + pattern.numel()]
      piece.copy_(pattern[:piece.numel()])

  def close(self):
    if self.block is not None:
      self.library.release(self.block)
    self.block = self.key = None


_permutations = {}


def power_law(random, count, rows, exponent):
  """Numbers below `rows` by inverse CDF over [1, rows], scattered by a fixed permutation."""
  if rows not in _permutations:
    _permutations.clear()
    _permutations[rows] = np.random.default_rng(1).permutation(rows)
  power = 1 - exponent
  ranks = np.power(1 + random.random(count) * (float(rows + 1) ** power - 1), 1 / power).astype(np.int64)
  return _permutations[rows][np.clip(ranks, 1, rows) - 1]


@functools.lru_cache(maxsize=40)
def plain_indices(count, below, exponent, stream):
  """Not to be written to: the next case may get the same ones."""
  random = np.random.default_rng(100 + stream)
  return power_law(random, count, below, exponent) if exponent else random.integers(0, below, count)


def make_indices(problem, stream):
  """One index set: a tensor of int64."""
  indices = plain_indices(problem.count, problem.segments or problem.rows, problem.exponent, stream).copy()
  if problem.mode == "padded":
    indices[np.random.default_rng(stream).integers(0, PADDING_ONE_IN, problem.count) == 0] = 0
  if problem.mode in ("segment_sum", "segment_sum_backward"):
    indices.sort()
  return torch.from_numpy(np.ascontiguousarray(indices))


def make_index_sets(problem):
  touched = problem.count * problem.row_bytes
  sets = 1 if problem.warm or problem.segments else min(max(7, -(-ROTATION_BYTES // touched)), 31)
  return [make_indices(problem, stream) for stream in range(sets)]


def useful_bytes(problem, indices):
  """Rows and indices read, output written; of gradients, touched rows read and written."""
  count, row = problem.count, problem.row_bytes
  out_row = problem.dim * ITEM_BYTES[problem.plain_dtype]
  if problem.segments:
    return count * (row + 8) + problem.segments * row
  if problem.mode == "lookup":
    return count * (row + 8 + out_row)
  if problem.mode == "bag_sum_backward":
    return problem.bags * (row + 8) + count * 8 + 2 * row * int(torch.unique(indices).numel())
  rows_read = count - int((indices == 0).sum()) if problem.mode == "padded" else count
  extra = count * ITEM_BYTES[problem.plain_dtype] if problem.mode == "weighted" else 0
  extra += problem.bags * problem.dim * 8 if problem.mode == "bag_max" else 0
  return rows_read * row + count * 8 + problem.bags * (out_row + 8) + extra
