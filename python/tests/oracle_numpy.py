"""Plain answers in double precision, by loops that share nothing with Sheaf; and problems to ask for."""
import dataclasses

import numpy as np
from hypothesis import strategies as st

try:
  import ml_dtypes
  BF16 = [np.dtype(ml_dtypes.bfloat16)]
except ImportError:
  BF16 = []

DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16")] + BF16
INDEX_DTYPES = [np.dtype("int32"), np.dtype("int64")]
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 3e-3, "bfloat16": 3e-2}


def close(got, expected, weight):
  """Whether `got` is `expected` up to rounding; `weight` is the sum of the absolute terms."""
  got = np.asarray(got)
  bound = ROUNDING[got.dtype.name] * (1e-6 + np.asarray(weight, np.float64))
  return got.shape == expected.shape and bool(np.all(np.abs(got.astype(np.float64) - expected) <= bound))


@dataclasses.dataclass
class Bags:
  """A table, bags of indices into it, and what else a call may have."""
  table: np.ndarray
  bags: list
  weights: list
  padding: int | None
  index_dtype: np.dtype
  offset_dtype: np.dtype
  spaced: bool = False  # indices in every second place

  @property
  def indices(self):
    indices = np.array([i for bag in self.bags for i in bag], self.index_dtype)
    return laid_out(indices, "spaced" if self.spaced else "plain")

  @property
  def offsets(self):
    ends = np.cumsum([0] + [len(bag) for bag in self.bags])
    return ends[:-1].astype(self.offset_dtype)

  @property
  def offsets_with_end(self):
    return np.cumsum([0] + [len(bag) for bag in self.bags]).astype(self.offset_dtype)

  @property
  def flat_weights(self):
    return np.array([w for bag in self.weights for w in bag], np.float64).astype(self.table.dtype)

  def entries(self, b, weighted):
    """(row, weight) of the entries of bag b that count."""
    weights = [float(w) for w in np.asarray(self.weights[b], np.float64).astype(self.table.dtype)]
    return [(i, w if weighted else 1.0) for i, w in zip(self.bags[b], weights) if i != self.padding]


def laid_out(array, layout):
  """The same values lying otherwise: with gaps between rows, column by column, backwards, in every second place."""
  if layout == "apart":
    wide = np.zeros(array.shape[:-1] + (array.shape[-1] + 3,), array.dtype)
    wide[..., 1:array.shape[-1] + 1] = array
    return wide[..., 1:array.shape[-1] + 1]
  if layout == "columns":
    return np.asfortranarray(array)
  if layout == "backwards":
    return array[::-1].copy()[::-1]
  if layout == "spaced":
    return np.repeat(array, 2, axis=0)[::2]
  return array


LAYOUTS = ["plain", "apart", "columns", "backwards", "spaced"]


def values(random, shape, dtype):
  """Numbers of a few bits, so that narrow types hold them exactly."""
  return (random.integers(-64, 65, shape) / 16).astype(dtype)


@st.composite
def bag_problems(draw, dtypes=tuple(DTYPES)):
  rows, dim = draw(st.integers(1, 9)), draw(st.sampled_from([0, 1, 2, 7, 16, 33]))
  random = np.random.default_rng(draw(st.integers(0, 2**32)))
  lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 20]), max_size=6))
  table = values(random, (rows, dim), draw(st.sampled_from(dtypes)))
  table = laid_out(table, draw(st.sampled_from(LAYOUTS)))
  bags = [[int(i) for i in random.integers(0, rows, length)] for length in lengths]
  weights = [[float(w) for w in random.integers(1, 9, length) / 8] for length in lengths]
  padding = draw(st.one_of(st.none(), st.integers(0, rows - 1)))
  return Bags(table, bags, weights, padding, draw(st.sampled_from(INDEX_DTYPES)), draw(st.sampled_from(INDEX_DTYPES)),
              draw(st.booleans()))


def bag_forward(p, mode, weighted):
  """(result, sum of absolute terms, row that gave each maximum)"""
  table = p.table.astype(np.float64)
  out, size = np.zeros((len(p.bags), table.shape[1])), np.zeros((len(p.bags), table.shape[1]))
  arg = np.full(out.shape, -1)
  for b in range(len(p.bags)):
    entries = p.entries(b, weighted)
    if not entries:
      continue
    terms = np.array([w * table[i] for i, w in entries])
    share = sum(w for _, w in entries) if mode == "mean" else 1.0
    size[b] = np.abs(terms).sum(0) / share
    if mode == "max":
      best = np.argmax(terms, axis=0)
      out[b], arg[b] = terms.max(0), np.array([entries[k][0] for k in best])
    else:
      out[b] = terms.sum(0) / share
  return out, size, arg


def bag_table_grad(p, mode, weighted, grad, scale_by_freq=False):
  """(gradient of the table, sum of absolute terms)"""
  grad, rows = grad.astype(np.float64), p.table.shape[0]
  out, size = np.zeros((rows, grad.shape[1])), np.zeros((rows, grad.shape[1]))
  _, _, arg = bag_forward(p, "max", False)
  counts = np.zeros(rows)
  for b in range(len(p.bags)):
    entries = p.entries(b, weighted)
    share = sum(w for _, w in entries) if mode == "mean" else 1.0
    if mode == "max":
      for d in range(grad.shape[1]):
        if arg[b, d] >= 0:
          out[arg[b, d], d] += grad[b, d]
          size[arg[b, d], d] += abs(grad[b, d])
      continue
    for i, w in entries:
      counts[i] += 1
      out[i] += w / share * grad[b]
      size[i] += np.abs(w / share * grad[b])
  if scale_by_freq:
    out, size = out / np.maximum(counts, 1)[:, None], size / np.maximum(counts, 1)[:, None]
  return out, size


@st.composite
def segment_problems(draw, dtypes=tuple(DTYPES)):
  """(data, ids, segments), ids sorted."""
  random = np.random.default_rng(draw(st.integers(0, 2**32)))
  rows, segments = draw(st.integers(0, 25)), draw(st.integers(1, 6))
  shape = (rows,) + draw(st.sampled_from([(), (1,), (5,), (0,), (17,), (2, 3)]))
  data = values(random, shape, draw(st.sampled_from(dtypes)))
  data[data == 0] = 1 if draw(st.booleans()) else 0
  data = laid_out(data, draw(st.sampled_from([layout for layout in LAYOUTS if layout != "apart" or len(shape) > 1])))
  ids = np.sort(random.integers(0, segments, rows)).astype(draw(st.sampled_from(INDEX_DTYPES)))
  return data, ids, segments


REDUCTIONS = {"sum": (np.sum, 0.0), "mean": (np.mean, 0.0), "max": (np.max, 0.0), "min": (np.min, 0.0),
              "prod": (np.prod, 1.0)}


def segment_forward(data, ids, segments, reduce):
  """(result, sum of absolute terms, or what stands for it)"""
  function, empty = REDUCTIONS[reduce]
  data = data.astype(np.float64)
  out = np.full((segments,) + data.shape[1:], empty)
  size = np.zeros(out.shape)
  for s in range(segments):
    rows = data[ids == s]
    if len(rows):
      out[s] = function(rows, axis=0)
      size[s] = np.abs(rows).sum(0) if reduce != "prod" else np.abs(out[s]) * len(rows)
  return out, size


def segment_grad(data, ids, segments, reduce, grad):
  """(gradient of the data, what its rounding is measured by); the first of equal extremes gets all of it."""
  data, grad = data.astype(np.float64), grad.astype(np.float64)
  out = np.zeros(data.shape)
  for s in range(segments):
    where = np.flatnonzero(ids == s)
    if not len(where):
      continue
    rows = data[where]
    if reduce == "sum":
      out[where] = grad[s]
    elif reduce == "mean":
      out[where] = grad[s] / len(where)
    elif reduce == "prod":
      for k, n in enumerate(where):
        out[n] = grad[s] * np.prod(np.delete(rows, k, axis=0), axis=0)
    else:
      best = (np.argmax if reduce == "max" else np.argmin)(rows, axis=0)
      for place in np.ndindex(rows.shape[1:]):
        out[(where[best[place]],) + place] = grad[(s,) + place]
  return out, np.abs(out) * (25 if reduce == "prod" else 1)
