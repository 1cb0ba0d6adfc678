"""How arrays come in and go out: kinds, layouts, read-only memory, lifetimes, errors, threads, leaks."""
import array
import ctypes
import gc
import os
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import sheaf

TABLE = np.arange(24, dtype=np.float32).reshape(8, 3)
INDEX = np.array([1, 7, 1])


class Foreign:
  """An array of no known framework that speaks DLPack, in its old or its new form."""

  def __init__(self, values, versioned):
    self.values, self.versioned, self.asked = values, versioned, []

  def __dlpack_device__(self):
    return self.values.__dlpack_device__()

  def __dlpack__(self, **options):
    self.asked.append(options)
    if not self.versioned and "max_version" in options:
      raise TypeError("max_version is not known")
    if self.versioned and np.lib.NumpyVersion(np.__version__) < "2.1.0":
      options.pop("max_version")
    return self.values.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_of_either_version(versioned):
  weight, index = Foreign(TABLE, versioned), Foreign(INDEX, versioned)
  assert np.array_equal(sheaf.embedding(index, weight), TABLE[INDEX])
  assert "max_version" in weight.asked[0]


def test_layouts_are_taken_or_copied():
  flipped, turned, wide = TABLE[::-1], np.asfortranarray(TABLE), np.arange(80, dtype=np.float32).reshape(8, 10)
  for table in (flipped, turned, wide[:, 2:5], wide[:, ::3], wide[::2], TABLE.T.copy().T):
    index = np.array([1, 3, 1])
    assert np.array_equal(sheaf.embedding(index, table), table[index])
    assert np.array_equal(sheaf.embedding(np.array([3, 0, 1, 0, 1])[::2], table), table[[3, 1, 1]])
  odd = np.frombuffer(bytes(1) + TABLE.tobytes(), np.uint8)[1:].view(np.float32).reshape(8, 3)
  assert not odd.flags.aligned
  assert np.array_equal(sheaf.embedding(INDEX, odd), TABLE[INDEX])


def test_lists_buffers_and_numbers_are_arrays():
  assert np.array_equal(sheaf.embedding([1, 7], TABLE), TABLE[[1, 7]])
  assert np.array_equal(sheaf.embedding(array.array("i", [1, 7]), TABLE), TABLE[[1, 7]])
  assert np.array_equal(sheaf.embedding(3, TABLE), TABLE[3])
  assert np.array_equal(sheaf.embedding(memoryview(INDEX), memoryview(TABLE)), TABLE[INDEX])
  assert np.array_equal(sheaf.segment_sum(array.array("d", [1, 2, 4]), [0, 0, 1], 2), [3, 4])


def test_read_only_and_mapped_arrays_are_inputs(tmp_path):
  np.save(tmp_path / "table.npy", TABLE)
  mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
  assert isinstance(mapped, np.memmap)
  frozen = INDEX.copy()
  frozen.flags.writeable = False
  assert np.array_equal(sheaf.embedding(frozen, mapped), TABLE[INDEX])
  with pytest.raises(ValueError, match="out is read-only"):
    sheaf.embedding(INDEX, TABLE, out=np.load(tmp_path / "table.npy", mmap_mode="r")[:3])


def test_out_is_written_and_returned():
  out = np.full((3, 3), -1, np.float32)
  assert sheaf.embedding(INDEX, TABLE, out=out) is out
  assert np.array_equal(out, TABLE[INDEX])
  wide = np.zeros((3, 9), np.float32)
  sheaf.embedding(INDEX, TABLE, out=wide[:, 3:6])
  assert np.array_equal(wide[:, 3:6], TABLE[INDEX]) and not wide[:, :3].any() and not wide[:, 6:].any()
  best, arg = np.empty((1, 3), np.float32), np.empty((1, 3), np.int64)
  assert sheaf.embedding_bag(INDEX[None], TABLE, mode="max", out=best, arg_out=arg)[1] is arg
  assert arg.tolist() == [[7, 7, 7]]
  grad = np.empty((8, 3), np.float32)
  assert sheaf.embedding_backward(TABLE[:3], INDEX, 8, out=grad) is grad
  assert np.array_equal(grad[1], TABLE[0] + TABLE[2])
  data = np.empty((3, 2, 2))
  assert sheaf.segment_sum_backward(np.ones((1, 2, 2)), [0, 0, 0], out=data) is data and data.sum() == 12


@pytest.mark.parametrize("out, error, words", [
  (np.empty((2, 3), np.float32), ValueError, r"shape \(2, 3\); \(3, 3\) is needed"),
  (np.empty((3, 3)), TypeError, "elements of f64; f32 is needed"),
  (np.empty((3, 3), np.float32).T, ValueError, "contiguously"),
  ([1, 2, 3], TypeError, "no array that can be written"),
  (TABLE[:3], ValueError, "share"),
])
def test_a_wrong_out_is_refused(out, error, words):
  with pytest.raises(error, match=words):
    sheaf.embedding(INDEX, TABLE, out=out)


@pytest.mark.parametrize("call, error, words", [
  (lambda: sheaf.embedding([1, 8], TABLE), IndexError, "8 at position 1 is outside 0..7; 1 such entry"),
  (lambda: sheaf.embedding([-1], TABLE), IndexError, "-1 at position 0"),
  (lambda: sheaf.segment_sum(TABLE, [0] * 7 + [9], 4), IndexError, "9 at position 7 is outside 0..3"),
  (lambda: sheaf.segment_sum(TABLE, [1, 0] * 4, 4), ValueError, "0 at position 1 follows 1"),
  (lambda: sheaf.embedding([0.5], TABLE), TypeError, "input has elements of float64"),
  (lambda: sheaf.embedding(np.array([1], np.uint8), TABLE), TypeError, "input has elements of uint8"),
  (lambda: sheaf.embedding([1], TABLE.astype(np.complex64)), TypeError, "weight has elements of complex64"),
  (lambda: sheaf.embedding([1], TABLE.astype(">f4")), TypeError, "weight has elements of >f4"),
  (lambda: sheaf.embedding([1], TABLE[0]), ValueError, "dimensions"),
  (lambda: sheaf.embedding([1], None), TypeError, "needs the argument 'weight'"),
  (lambda: sheaf.segment_sum(TABLE, [0] * len(TABLE)), TypeError,
   r"^segment_sum\(\) needs the argument 'num_segments'"),
  (lambda: sheaf.unsorted_segment_max_backward(TABLE), TypeError,
   r"^unsorted_segment_max_backward\(\) needs the argument 'segment_ids'"),
  (lambda: sheaf.segment_sum(TABLE, [0, 1], 2), ValueError, f"segment_ids has 2 entries, data has {len(TABLE)} rows"),
  (lambda: sheaf.embedding([0.0], TABLE), TypeError, "int32 or int64 are needed"),
  (lambda: sheaf.embedding([1], object()), TypeError, "no array of numbers"),
  (lambda: sheaf.embedding([1], TABLE, wieght=3), TypeError, "no argument 'wieght'"),
  (lambda: sheaf.embedding([1], TABLE, input=[2]), TypeError, "'input' twice"),
  (lambda: sheaf.embedding([1], TABLE, 8), ValueError, "padding_idx is 8, outside the 8 rows"),
  (lambda: sheaf.embedding([1], TABLE, "1"), TypeError, "padding_idx is '1'; an integer is needed"),
  (lambda: sheaf.embedding([1], TABLE, 2**70), ValueError, "beyond 64 bits"),
  (lambda: sheaf.embedding_bag([[1]], TABLE, mode="median"), ValueError, "mode is 'median'; it is one of mean"),
  (lambda: sheaf.embedding_bag([1, 2], TABLE, [0, 3]), ValueError, "offsets"),
  (lambda: sheaf.embedding_bag([1, 2], TABLE, [1]), ValueError, "offsets"),
  (lambda: sheaf.embedding_bag([1, 2], TABLE), ValueError, "there are no offsets"),
  (lambda: sheaf.embedding_bag([[1, 2]], TABLE, mode="max", per_sample_weights=np.ones((1, 2), np.float32)),
   NotImplementedError, "weights"),
  (lambda: sheaf.embedding_bag([[1, 2]], TABLE, mode="sum", per_sample_weights=np.ones((1, 2))), ValueError, "weights"),
  (lambda: sheaf.embedding(np.zeros((1,) * 9, int), TABLE), ValueError, "9 dimensions"),
  (lambda: sheaf.segment_max_backward(TABLE, [0]), ValueError, "data"),
])
def test_errors_are_those_that_people_expect(call, error, words):
  with pytest.raises(error, match=words):
    call()


def test_lists_have_the_types_that_are_needed():
  assert sheaf.embedding([], TABLE).shape == (0, 3)
  assert np.array_equal(sheaf.embedding_bag([], TABLE, [0, 0], mode="sum"), np.zeros((2, 3)))
  assert np.array_equal(sheaf.segment_sum(TABLE[:0], [], 2), np.zeros((2, 3)))
  for dtype in (np.float32, np.float16, np.float64):
    table = TABLE.astype(dtype)
    for weights in ([[2, 0.5]], ((2, 0.5),)):
      out = sheaf.embedding_bag([[1, 2]], table, mode="sum", per_sample_weights=weights)
      assert out.dtype == dtype
      same = sheaf.embedding_bag([[1, 2]], table, mode="sum", per_sample_weights=np.array(weights, dtype))
      assert np.array_equal(out, same)
      grad = sheaf.embedding_bag_backward(out, [[1, 2]], 8, mode="sum", per_sample_weights=weights)
      assert grad.dtype == dtype and np.allclose(grad[1], 2 * out[0], rtol=1e-2)
  packed = sheaf.quantize(TABLE)
  weighted = sheaf.embedding_bag([[1]], packed, mode="sum", per_sample_weights=[[1]])
  assert np.array_equal(weighted[0], packed.dequantize()[1])


def test_an_index_error_has_its_numbers():
  with pytest.raises(IndexError) as caught:
    sheaf.embedding([1, 99, 2, -5], TABLE)
  assert (caught.value.position, caught.value.value, caught.value.count) == (1, 99, 2)
  assert np.array_equal(sheaf.embedding([1, 99], TABLE, bad_index="skip")[1], np.zeros(3))


def test_an_out_of_segments_has_the_shape_of_the_data():
  data = np.ones((3, 2, 2))
  with pytest.raises(ValueError, match=r"out has shape \(1, 4\); \(1, 2, 2\) is needed"):
    sheaf.segment_sum(data, [0, 0, 0], 1, out=np.empty((1, 4)))


def test_a_failing_call_leaves_its_output_alone():
  out = np.full((2, 3), 5, np.float32)
  with pytest.raises(IndexError):
    sheaf.embedding([1, 99], TABLE, out=out)
  assert (out == 5).all()


def test_results_outlive_what_they_were_made_of(tmp_path):
  ids, rows = sheaf.embedding_backward(TABLE[:3].copy(), INDEX, 8, sparse=True)
  gc.collect()
  assert ids.tolist() == [1, 7] and np.array_equal(rows[1], TABLE[1])
  sheaf.save(tmp_path / "a.safetensors", {"t": TABLE})
  view = sheaf.load(tmp_path / "a.safetensors")["t"][2:]
  os.remove(tmp_path / "a.safetensors")
  gc.collect()
  assert np.array_equal(view, TABLE[2:])


def test_arrays_are_let_go():
  table = TABLE.copy()
  alive = weakref.ref(table)
  sheaf.embedding(INDEX, table)
  with pytest.raises(IndexError):
    sheaf.embedding([99], table)
  references = sys.getrefcount(table)
  for _ in range(100):
    sheaf.embedding_bag(INDEX[None], table)
  assert sys.getrefcount(table) == references
  view = memoryview(table)
  sheaf.embedding(INDEX, view)
  view.release()  # refused while a buffer is held
  del table
  gc.collect()
  assert alive() is None


def test_nothing_leaks(tmp_path):
  sheaf.save(tmp_path / "t.npy", TABLE)
  ids, data = np.array([0, 0, 1]), np.ones((3, 2))
  plan = sheaf.Plan("lookup_backward", dtype="f32", index_dtype="i64", rows=8, dim=3, indices=3)
  grad = np.zeros((8, 3), np.float32)

  def everything():
    sheaf.embedding(INDEX, TABLE)
    sheaf.embedding([1, 2], TABLE[::-1])
    sheaf.embedding_bag(INDEX, TABLE, [0, 2], "max", return_arg=True)
    sheaf.embedding_backward(TABLE[:3], INDEX, 8, sparse=True)
    sheaf.embedding_bag_backward(TABLE[:1], INDEX[None], 8, None, "sum", np.ones((1, 3), np.float32), weight=TABLE)
    sheaf.segment_prod_backward(data[:2], ids, data=data)
    sheaf.embedding_bag(INDEX[None], sheaf.quantize(TABLE, "int4"))
    sheaf.dequantize(sheaf.quantize(TABLE.tolist(), "int8"), "f16")
    sheaf.nearest(TABLE[:2].astype(np.float16), TABLE, 3, exclude=INDEX[:2])
    with sheaf.autocast("f16"):
      sheaf.embedding(INDEX, TABLE)
    plan.run(grad_out=TABLE[:3], indices=INDEX, table_grad=grad)
    sheaf.load(tmp_path / "t.npy")
    with sheaf.profile():
      sheaf.embedding(INDEX, TABLE)
    with sheaf.trace() as t:
      sheaf.segment_sum(sheaf.embedding(INDEX, TABLE), ids, 2)
    t.replay(TABLE, INDEX, ids)
    sheaf.shard.plan("lookup", 2, rows=8, dim=3, indices=3)
    for wrong in (lambda: sheaf.embedding([99], TABLE), lambda: sheaf.embedding([1.5], TABLE),
                  lambda: sheaf.embedding([1], TABLE, out=grad), lambda: sheaf.Plan("lookup"),
                  lambda: sheaf.embedding_bag([[1]], TABLE, mode="x"), lambda: sheaf.load(tmp_path / "none.npy"),
                  lambda: sheaf.nearest(TABLE[0], TABLE, exclude=99), lambda: sheaf.quantize(TABLE[0])):
      try:
        wrong()
      except (IndexError, TypeError, ValueError, OSError, NotImplementedError):
        pass

  # What Python and NumPy keep for later grows by fits and starts; a leak grows in every round, by an object a time.
  tracemalloc.start()
  grown, before = [], None
  for _ in range(8):
    for _ in range(200):
      everything()
    gc.collect()
    now = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks(), _resident_bytes()
    grown.append([new - old for new, old in zip(now, before or now)])
    before = now
    if len(grown) > 2 and grown[-1][0] < 3000 and grown[-1][1] < 100 and grown[-1][2] < 1_000_000:
      break
  else:
    raise AssertionError(f"bytes, blocks and resident bytes that 200 rounds added: {grown}")
  tracemalloc.stop()


def _resident_bytes():
  with open("/proc/self/statm", encoding="ascii") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_lock_is_released_around_work():
  """While one thread reduces, another one runs Python code."""
  table, indices = np.ones((200_000, 64), np.float32), np.random.default_rng(0).integers(0, 200_000, (20_000, 50))
  sheaf.set_threads(1)
  try:
    ticks, done = [0], threading.Event()

    def count():
      while not done.is_set():
        ticks[0] += 1
        time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    before = ticks[0]
    while ticks[0] == before:
      time.sleep(0.001)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked for the lock
    try:
      before = ticks[0]
      out = sheaf.embedding_bag(indices, table, mode="sum")
      during = ticks[0] - before
    finally:
      sys.setswitchinterval(interval)
      done.set()
      counter.join()
    assert during > 0
    assert (out == 50).all()
  finally:
    sheaf.set_threads(0)


def test_touched_gradient_stores_rows_and_leaves_the_others():
  indices = np.array([[1, 4], [4, 2]])
  grad_out = np.array([[1, 2], [10, 20]], np.float32)
  out = np.full((6, 2), 7, np.float32)
  plan = sheaf.Plan("bag_sum_backward", dtype="f32", index_dtype="i64", rows=6, dim=2, indices=4, bags=2,
                    bag_form="matrix", grad_write="touched")
  plan.run(grad_out=grad_out, indices=indices, table_grad=out)
  assert out.tolist() == [[7, 7], [1, 2], [10, 20], [7, 7], [11, 22], [7, 7]]


def test_threads_share_tables_and_plans():
  random = np.random.default_rng(1)
  table = random.standard_normal((500, 16)).astype(np.float32)
  sets = [random.integers(0, 500, (40, 6)) for _ in range(8)]
  expected = [sheaf.embedding_bag(s, table, mode="sum") for s in sets]
  plan = sheaf.Plan("bag_sum_backward", dtype="f32", index_dtype="i64", rows=500, dim=16, indices=240, bags=40,
                    bag_form="matrix", grad_write="overwrite")
  assert plan.workspace_bytes > 0
  gradients = [sheaf.embedding_bag_backward(e, s, 500, mode="sum") for e, s in zip(expected, sets)]
  wrong = []

  def work(number):
    out = np.empty((500, 16), np.float32)
    for _ in range(100):
      if not np.array_equal(sheaf.embedding_bag(sets[number], table, mode="sum"), expected[number]):
        wrong.append(number)
      plan.run(grad_out=expected[number], indices=sets[number], table_grad=out)
      if not np.array_equal(out, gradients[number]):
        wrong.append(number)

  workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  assert not wrong


def test_memory_of_sheafs_speaks_both_protocols(tmp_path):
  sheaf.save(tmp_path / "t.npy", TABLE)
  memory = sheaf._core.read_npy(tmp_path / "t.npy")
  assert memoryview(memory).readonly and memoryview(memory).shape == (8, 3)
  name = ctypes.pythonapi.PyCapsule_GetName
  name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
  assert name(memory.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
  with pytest.raises(BufferError, match="read-only"):
    memory.__dlpack__()
  assert memory.__dlpack_device__() == (1, 0)


def test_memory_of_files_is_given_as_it_lies_or_not_at_all(tmp_path):
  np.save(tmp_path / "table.npy", np.ones((2, 2), np.float32))
  memory = sheaf._core.read_npy(str(tmp_path / "table.npy"))
  with pytest.raises(BufferError, match="without a copy"):
    memory.__dlpack__(max_version=(1, 0), copy=True)
  with pytest.raises(BufferError, match="where and as it lies"):
    memory.__dlpack__(max_version=(1, 0), dl_device=(2, 0))


def test_names_with_nul_and_paths_that_are_no_text(tmp_path):
  with pytest.raises(ValueError, match="holds a NUL"):
    sheaf.save(tmp_path / "t.safetensors", {"a\0b": np.ones((1, 1), np.float32)})
  with pytest.raises(ValueError, match="holds a NUL"):
    sheaf.save(tmp_path / "t.safetensors", {"a": np.ones((1, 1), np.float32)}, {"k": "v\0w"})
  with pytest.raises(OSError, match="nowhere"):
    sheaf.load(b"/nowhere/\xff.npy")
