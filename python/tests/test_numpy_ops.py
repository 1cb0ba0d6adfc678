"""Every op on NumPy arrays, forward and backward, against plain answers."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle_numpy as oracle
import sheaf


@given(oracle.bag_problems(), st.sampled_from(["zero", "row"]))
def test_embedding_copies_rows(p, padding):
  indices = p.indices
  got = sheaf.embedding(indices, p.table, p.padding, padding=padding)
  expected = p.table[indices]
  if padding == "zero" and p.padding is not None:
    expected[indices == p.padding] = 0
  assert got.dtype == p.table.dtype
  assert np.array_equal(got, expected)


def test_a_negative_padding_idx_counts_from_the_end():
  table = np.ones((4, 2), np.float32)
  assert sheaf.embedding([3, 0], table, -1).tolist() == [[0, 0], [1, 1]]
  assert sheaf.embedding_backward(table[:2], [3, 0], 4, -1)[:, 0].tolist() == [1, 0, 0, 0]
  assert sheaf.embedding_bag([[3, 0]], table, mode="sum", padding_idx=-1).tolist() == [[1, 1]]


@given(oracle.bag_problems(), st.booleans())
def test_embedding_backward_adds_up(p, scale):
  grad = oracle.values(np.random.default_rng(1), (len(p.indices), p.table.shape[1]), p.table.dtype)
  single = oracle.Bags(p.table, [[int(i)] for i in p.indices], [[1.0]] * len(p.indices), p.padding, p.index_dtype,
                       p.offset_dtype)
  expected, size = oracle.bag_table_grad(single, "sum", False, grad, scale)
  rows = p.table.shape[0]
  dense = sheaf.embedding_backward(grad, p.indices, rows, p.padding, scale)
  assert oracle.close(dense, expected, size)
  ids, values = sheaf.embedding_backward(grad, p.indices, rows, p.padding, scale, True)
  assert list(ids) == sorted({int(i) for i in p.indices if i != p.padding})
  restored = np.zeros_like(dense)
  restored[ids] = values
  assert np.array_equal(restored, dense)


@given(oracle.bag_problems(), st.sampled_from(["sum", "mean", "max"]), st.booleans(), st.booleans())
def test_bags(p, mode, weighted, with_end):
  weighted = weighted and mode != "max"
  expected, size, arg = oracle.bag_forward(p, mode, weighted)
  got = sheaf.embedding_bag(p.indices, p.table, p.offsets_with_end if with_end else p.offsets, mode,
                            p.flat_weights if weighted else None, with_end, p.padding, return_arg=mode == "max")
  if mode == "max":
    got, got_arg = got
    assert np.array_equal(got_arg, arg)
  assert oracle.close(got, expected, size)


@given(oracle.bag_problems(), st.sampled_from(["sum", "mean", "max"]), st.booleans(), st.booleans())
def test_bag_gradients(p, mode, weighted, scale):
  weighted, scale = weighted and mode != "max", scale and mode != "max"
  weights = p.flat_weights if weighted else None
  grad = oracle.values(np.random.default_rng(1), (len(p.bags), p.table.shape[1]), p.table.dtype)
  expected, size = oracle.bag_table_grad(p, mode, weighted, grad, scale)
  arg = oracle.bag_forward(p, "max", False)[2].astype(p.index_dtype) if mode == "max" else None
  rows = p.table.shape[0]
  got = sheaf.embedding_bag_backward(grad, p.indices, rows, p.offsets, mode, weights, False, p.padding, scale, arg=arg)
  assert oracle.close(got, expected, size)
  if mode != "max":
    ids, values = sheaf.embedding_bag_backward(grad, p.indices, rows, p.offsets, mode, weights, False, p.padding, scale,
                                               True)
    restored = np.zeros_like(got)
    restored[ids] = values
    assert np.array_equal(restored, got)


@given(oracle.bag_problems([np.dtype("float64")]), st.sampled_from(["sum", "mean"]))
def test_weights_gradients(p, mode):
  weights, forward = p.flat_weights, None
  grad = oracle.values(np.random.default_rng(1), (len(p.bags), p.table.shape[1]), p.table.dtype)
  if mode == "mean":
    forward = sheaf.embedding_bag(p.indices, p.table, p.offsets, mode, weights, False, p.padding)
  got = sheaf.embedding_bag_backward(grad, p.indices, p.table.shape[0], p.offsets, mode, weights, False, p.padding,
                                     weight=p.table, forward=forward, want="weights")
  place = 0
  for b, bag in enumerate(p.bags):
    total = sum(w for _, w in p.entries(b, True))
    for i, _ in zip(bag, p.weights[b]):
      term = 0.0
      if i != p.padding:
        row = p.table[i] - (forward[b] if mode == "mean" else 0)
        term = float(np.dot(grad[b], row)) / (total if mode == "mean" else 1)
      assert abs(got[place] - term) <= 1e-9
      place += 1


@given(oracle.bag_problems([np.dtype("float32")]))
def test_a_matrix_of_indices_is_bags_of_one_length(p):
  rows = p.table.shape[0]
  matrix = np.random.default_rng(3).integers(0, rows, (4, 3)).astype(p.index_dtype)
  for mode in ("sum", "mean", "max"):
    flat = sheaf.embedding_bag(matrix.ravel(), p.table, np.arange(0, 12, 3), mode)
    assert np.array_equal(sheaf.embedding_bag(matrix, p.table, mode=mode), flat)


@given(oracle.segment_problems(), st.sampled_from(list(oracle.REDUCTIONS)), st.booleans())
def test_segments(problem, reduce, shuffled):
  data, ids, segments = problem
  if data.dtype.itemsize == 2 and reduce == "prod":
    data = np.sign(data).astype(data.dtype)  # products of 25 numbers leave f16
  expected, size = oracle.segment_forward(data, ids, segments, reduce)
  if shuffled:
    order = np.random.default_rng(5).permutation(len(ids))
    data, ids = data[order], ids[order]
  got = getattr(sheaf, ("unsorted_" if shuffled else "") + f"segment_{reduce}")(data, ids, segments)
  assert oracle.close(got, expected, size)


@given(oracle.segment_problems([np.dtype("float64"), np.dtype("float32")]), st.sampled_from(list(oracle.REDUCTIONS)),
       st.booleans(), st.booleans())
def test_segment_gradients(problem, reduce, shuffled, by_arg):
  data, ids, segments = problem
  prefix = "unsorted_" if shuffled else ""
  if shuffled:
    order = np.random.default_rng(5).permutation(len(ids))
    data, ids = data[order], ids[order]
  grad = oracle.values(np.random.default_rng(6), (segments,) + data.shape[1:], data.dtype)
  expected, size = oracle.segment_grad(data, ids, segments, reduce, grad)
  given_data = {} if reduce in ("sum", "mean") else {"data": data}
  if by_arg and reduce in ("max", "min"):
    given_data = {"arg": getattr(sheaf, f"{prefix}segment_{reduce}")(data, ids, segments, return_arg=True)[1]}
  got = getattr(sheaf, f"{prefix}segment_{reduce}_backward")(grad, ids, **given_data)
  assert oracle.close(got, expected, size)


def test_empty_segments_and_ties_as_asked_for():
  data, ids = np.array([[2.0], [2.0], [5.0]]), np.array([0, 0, 2])
  assert np.isnan(sheaf.segment_mean(data, ids, 3, empty="identity")[1, 0])
  assert sheaf.segment_max(data, ids, 3, empty="identity")[1, 0] == -np.inf
  assert sheaf.segment_max(data, ids, 3)[1, 0] == 0
  ones = np.ones((3, 1))
  assert sheaf.segment_max_backward(ones, ids, data=data).ravel().tolist() == [1, 0, 1]
  assert sheaf.segment_max_backward(ones, ids, data=data, ties="split").ravel().tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_bits_depend_on_neither_threads_nor_instructions(threads, isa):
  random = np.random.default_rng(0)
  table = random.standard_normal((2000, 37)).astype(np.float32)
  indices = random.integers(0, 2000, (3000, 40))
  grad = random.standard_normal((3000, 37)).astype(np.float32)
  expected = sheaf.embedding_bag(indices, table), sheaf.embedding_bag_backward(grad, indices, 2000)
  before = sheaf.info()["isa"]
  try:
    sheaf.set_threads(threads)
    try:
      sheaf.set_isa(isa)
    except RuntimeError:
      pytest.skip(f"this CPU has no {isa}")
    got = sheaf.embedding_bag(indices, table), sheaf.embedding_bag_backward(grad, indices, 2000)
  finally:
    sheaf.set_threads(0)
    sheaf.set_isa(before)
  assert got[0].tobytes() == expected[0].tobytes()
  assert got[1].tobytes() == expected[1].tobytes()
