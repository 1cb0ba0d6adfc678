"""Arrays on a CUDA device: every function on PyTorch's tensors gives the CPU's bits, in the framework's own stream;
CuPy's and JAX's arrays too. Skipped without a device."""
import gc
import os
import threading

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
if not torch.cuda.is_available():
  pytest.skip("there is no CUDA device here", allow_module_level=True)

import sheaf

if not sheaf.info()["devices"]:
  pytest.skip("this package was built without CUDA", allow_module_level=True)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
torch.manual_seed(0)
TABLE = torch.randn(500, 48)
INDEX = torch.randint(0, 500, (64, 7))
FLAT, OFFSETS = INDEX.flatten(), torch.cat([torch.tensor([0, 0, 3, 3, 100]), torch.arange(120, 448, 6)])
ENDS = torch.cat([OFFSETS, torch.tensor([448])])
IDS = torch.sort(torch.randint(0, 60, (500,))).values
SHUFFLED = torch.randint(0, 60, (500,))


def moved(value):
  """The same on the device: tensors, tables, and what holds them."""
  if isinstance(value, torch.Tensor):
    return value.cuda()
  if isinstance(value, sheaf.QuantizedTable):
    return sheaf.QuantizedTable(value.packed.cuda(), value.dtype, value.dim)
  return value


def equal(mine, other):
  """The CPU's bits, in memory of the device."""
  if isinstance(other, tuple):
    assert len(mine) == len(other) and all(equal(*pair) for pair in zip(mine, other))
    return True
  assert mine.is_cuda and mine.dtype == other.dtype and mine.shape == other.shape
  if other.is_floating_point():  # that it is a NaN is defined, not which
    assert torch.equal(mine.cpu().isnan(), other.isnan())
    mine, other = mine.nan_to_num(), other.nan_to_num()
  if other.numel():
    mine, other = mine.view(torch.uint8), other.view(torch.uint8)
  assert torch.equal(mine.cpu(), other)
  return True


def same(function, *args, **options):
  """The result on the device, which has the bits of the CPU's."""
  on_device = function(*map(moved, args), **{name: moved(value) for name, value in options.items()})
  assert equal(on_device, function(*args, **options))
  return on_device


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lookups_and_bags_have_the_cpus_bits(dtype, index):
  table, matrix, flat, weights = TABLE.to(dtype), INDEX.to(index), FLAT.to(index), torch.rand(448).to(dtype)
  same(sheaf.embedding, matrix, table)
  same(sheaf.embedding, matrix, table, 3)
  same(sheaf.embedding, matrix, table, 3, padding="row")
  for mode in ("sum", "mean"):
    same(sheaf.embedding_bag, matrix, table, mode=mode, padding_idx=int(matrix[0, 0]))
    same(sheaf.embedding_bag, flat, table, OFFSETS, mode)
    same(sheaf.embedding_bag, flat, table, ENDS, mode, weights, True, 7)
  same(sheaf.embedding_bag, flat, table, OFFSETS.to(index), "max", return_arg=True)
  same(sheaf.embedding_bag, matrix, table[:, 8:40], mode="sum")  # rows that lie apart
  same(sheaf.embedding_bag, matrix, table.t().contiguous().t(), mode="sum")  # a copy is made


@pytest.mark.parametrize("dtype", DTYPES)
def test_their_gradients_have_the_cpus_bits(dtype):
  rows, bags = torch.randn(64, 7, 48).to(dtype), torch.randn(len(OFFSETS), 48).to(dtype)
  table, weights = TABLE.to(dtype), torch.rand(448).to(dtype)
  for scale in (False, True):
    same(sheaf.embedding_backward, rows, INDEX, 500, 3, scale)
    same(sheaf.embedding_backward, rows, INDEX, 500, 3, scale, sparse=True)
    same(sheaf.embedding_bag_backward, bags, FLAT, 500, OFFSETS, "mean", None, False, 3, scale)
    same(sheaf.embedding_bag_backward, bags, FLAT, 500, OFFSETS, "sum", weights, False, 3, scale, sparse=True)
  same(sheaf.embedding_backward, rows, INDEX, 500, sparse="raw")
  forward, arg = sheaf.embedding_bag(FLAT, table, OFFSETS, "max", return_arg=True)
  same(sheaf.embedding_bag_backward, bags, FLAT, 500, OFFSETS, "max", arg=arg)
  same(sheaf.embedding_bag_backward, bags, FLAT, 500, OFFSETS, "sum", weights, weight=table)
  forward = sheaf.embedding_bag(FLAT, table, OFFSETS, "mean", weights)
  same(sheaf.embedding_bag_backward, bags, FLAT, 500, OFFSETS, "mean", weights, weight=table, forward=forward)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments_have_the_cpus_bits(reduce, dtype):
  data, grad = TABLE.to(dtype).reshape(500, 6, 8), torch.randn(60, 6, 8).to(dtype)
  for prefix, ids in (("", IDS), ("unsorted_", SHUFFLED)):
    forward, backward = (getattr(sheaf, f"{prefix}segment_{reduce}{tail}") for tail in ("", "_backward"))
    extreme = reduce in ("max", "min")
    same(forward, data, ids, 60, return_arg=extreme)
    same(forward, data, ids.int(), 61, empty="identity")
    same(backward, grad, ids, data=None if reduce in ("sum", "mean") else data, ties="split" if extreme else "first")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_tables(dtype):
  packed = sheaf.quantize(TABLE, dtype)
  on_device = sheaf.quantize(TABLE.cuda(), dtype)
  assert equal(on_device.packed, packed.packed)
  assert equal(sheaf.dequantize(on_device), sheaf.dequantize(packed))
  assert equal(on_device.dequantize("f16"), packed.dequantize("f16"))
  for out in (None, "f16", "bf16"):
    same(sheaf.embedding, INDEX, packed, out_dtype=out)
    for mode in ("sum", "mean", "max"):
      same(sheaf.embedding_bag, FLAT, packed, OFFSETS, mode, padding_idx=5, out_dtype=out)
  same(sheaf.embedding_bag, INDEX, packed, mode="sum", per_sample_weights=torch.rand(64, 7))


def test_autocast():
  for dtype in ("bf16", "f16"):
    with sheaf.autocast(dtype):
      for _ in range(2):
        same(sheaf.embedding, INDEX, TABLE)
        same(sheaf.embedding_bag, INDEX, TABLE, mode="sum", per_sample_weights=torch.rand(64, 7))


def test_empties_and_given_outputs():
  none = torch.empty(0, dtype=torch.int64)
  same(sheaf.embedding, none, TABLE)
  same(sheaf.embedding_bag, none, TABLE, torch.zeros(3, dtype=torch.int64), "sum")
  same(sheaf.embedding_backward, torch.empty(0, 48), none, 500, sparse=True)
  same(sheaf.segment_sum, torch.empty(0, 5), none, 4)
  out, arg = torch.empty(64, 100, device="cuda")[:, 20:68], torch.empty(64, 48, dtype=torch.int64, device="cuda")
  made = sheaf.embedding_bag(INDEX.cuda(), TABLE.cuda(), mode="max", out=out, arg_out=arg)
  assert made[0] is out and made[1] is arg
  assert equal(made, sheaf.embedding_bag(INDEX, TABLE, mode="max", return_arg=True))
  with pytest.raises(ValueError, match="out lies on device"):
    sheaf.embedding(INDEX.cuda(), TABLE.cuda(), out=torch.empty(64, 7, 48))


def busy(milliseconds=30):
  """Keeps the current stream working for a while."""
  torch.cuda._sleep(int(milliseconds * 1.5e6))


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_work_is_in_the_order_of_the_current_stream(policy):
  index, stream = INDEX.cuda(), torch.cuda.Stream()
  expected = sheaf.embedding_bag(INDEX, TABLE, mode="sum")
  source, table = TABLE.cuda(), torch.zeros_like(TABLE, device="cuda")
  torch.cuda.synchronize()
  with torch.cuda.stream(stream):
    busy()
    table.copy_(source)  # only then is there something to read
    out = sheaf.embedding_bag(index, table, mode="sum", bad_index=policy)
    waits = stream.query() is False
    table.zero_()  # only after it was read
    copy = out.clone()
  torch.cuda.synchronize()
  assert waits == (policy == "skip"), "with bad_index='skip' nothing is waited for"
  assert equal(copy, expected)


def test_memory_of_results_is_the_frameworks_own():
  """Sparse gradients are of a size that only the library knows; they may live on any stream, and die in any thread."""
  rows, index, streams = torch.randn(64, 7, 48, device="cuda"), INDEX.cuda(), [torch.cuda.Stream() for _ in range(3)]
  expected = sheaf.embedding_backward(rows.cpu(), INDEX, 500, sparse=True)
  torch.cuda.synchronize()
  for turn in range(60):
    with torch.cuda.stream(streams[turn % 3]):
      ids, values = sheaf.embedding_backward(rows, index, 500, sparse=True, bad_index="skip")
      values.record_stream(streams[(turn + 1) % 3])
      busy(0.5)
      kept = (ids.clone(), values.clone())
      threading.Thread(target=lambda pair: None, args=((ids, values),)).start()
      del ids, values
      streams[turn % 3].synchronize()
      assert equal(kept, expected)


def test_nothing_leaks_on_the_device():
  table, index, rows = TABLE.cuda(), INDEX.cuda(), torch.randn(64, 7, 48, device="cuda")

  def everything():
    sheaf.embedding(index, table)
    sheaf.embedding_bag(index, table, mode="max", return_arg=True)
    sheaf.embedding_backward(rows, index, 500, sparse=True)
    sheaf.dequantize(sheaf.quantize(table, "int8"))
    with pytest.raises(IndexError):
      sheaf.embedding(index + 500, table)

  free = []
  for _ in range(4):
    for _ in range(100):
      everything()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free.append(torch.cuda.mem_get_info()[0])
  assert free[1] - free[-1] < 1 << 20, free


def test_bad_input_is_named_and_the_context_lives():
  index = INDEX.cuda()
  index[2, 1] = 500
  for call in (lambda: sheaf.embedding(index, TABLE.cuda()), lambda: sheaf.embedding_bag(index, TABLE.cuda())):
    with pytest.raises(IndexError, match="500 at position 15 is outside 0..499; 1 such entry") as caught:
      call()
    assert (caught.value.position, caught.value.value, caught.value.count) == (15, 500, 1)
  with pytest.raises(ValueError, match="must not decrease"):
    sheaf.segment_sum(TABLE.cuda(), SHUFFLED.cuda(), 60)
  with pytest.raises(ValueError, match="offsets"):
    sheaf.embedding_bag(FLAT.cuda(), TABLE.cuda(), torch.tensor([0, 9, 5], device="cuda"))
  assert torch.equal(sheaf.embedding(index, TABLE.cuda(), bad_index="skip")[2, 1].cpu(), torch.zeros(48))
  for args in ((INDEX, TABLE.cuda()), (INDEX.cuda(), TABLE), (INDEX.numpy(), TABLE.cuda())):
    with pytest.raises(ValueError, match=r"lies on device \(.\, 0\), another operand on \(., 0\); all must lie on one"):
      sheaf.embedding(*args)
  with pytest.raises(NotImplementedError, match="on the CPU only"):
    sheaf.nearest(TABLE[0].cuda(), TABLE.cuda())
  same(sheaf.embedding, INDEX, TABLE)


def test_plans_profiles_and_traces():
  plan = sheaf.Plan("lookup_backward", dtype="f32", index_dtype="i64", rows=500, dim=48, indices=448, device="cuda",
                    grad_write="overwrite")
  grad, rows, stream = torch.empty(500, 48, device="cuda"), torch.randn(64, 7, 48), torch.cuda.Stream()
  expected = sheaf.embedding_backward(rows, INDEX, 500)
  on_device, index = rows.cuda(), INDEX.cuda()
  torch.cuda.synchronize()
  for where in (None, stream.cuda_stream):
    grad.fill_(7)
    torch.cuda.synchronize()
    plan.run(grad_out=on_device, indices=index, table_grad=grad, stream=where)
    assert equal(grad, expected)
  with sheaf.profile() as p:
    sheaf.embedding_bag(INDEX.cuda(), TABLE.cuda())
  assert p.records[0]["kernel"].startswith("bag_mean.f32.i64/cuda") and p.records[0]["device_ns"] > 0
  with sheaf.trace() as t:
    sheaf.segment_sum(sheaf.embedding(FLAT[:60].cuda(), TABLE.cuda()), IDS[:60].cuda(), 60)
  assert t.graph.counts == (3, 2, 1)
  with torch.cuda.stream(stream):
    replayed, = t.replay(TABLE.cuda() * 2, FLAT[60:120].cuda(), IDS[:60].cuda())
  stream.synchronize()
  assert equal(replayed, sheaf.segment_sum(TABLE[FLAT[60:120]] * 2, IDS[:60], 60))


def test_threads_with_streams_of_their_own():
  table, wrong = TABLE.cuda(), []
  sets = [torch.randint(0, 500, (64, 7)) for _ in range(6)]
  torch.cuda.synchronize()

  def work(index):
    expected = sheaf.embedding_bag_backward(TABLE[:64], index, 500, mode="sum")
    with torch.cuda.stream(torch.cuda.Stream()):
      on_device, grad = index.cuda(), table[:64]
      for _ in range(50):
        out = sheaf.embedding_bag_backward(grad, on_device, 500, mode="sum", bad_index="skip")
      if not torch.equal(out.cpu(), expected):
        wrong.append(index)

  workers = [threading.Thread(target=work, args=(index,)) for index in sets]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  assert not wrong


def test_cupy_arrays():
  cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
  index, table, offsets = cupy.asarray(INDEX.numpy()), cupy.asarray(TABLE.numpy()), cupy.asarray(OFFSETS.numpy())

  def check(mine, other):
    assert isinstance(mine, cupy.ndarray) and mine.dtype == other.dtype
    assert cupy.asnumpy(mine).tobytes() == other.tobytes()

  check(sheaf.embedding(index, table), TABLE.numpy()[INDEX.numpy()])
  for mode in ("sum", "mean", "max"):
    check(sheaf.embedding_bag(index.ravel(), table, offsets, mode, padding_idx=3),
          sheaf.embedding_bag(FLAT.numpy(), TABLE.numpy(), OFFSETS.numpy(), mode, padding_idx=3))
  pairs = zip(sheaf.embedding_bag_backward(table[:64], index, 500, mode="sum", sparse=True),
              sheaf.embedding_bag_backward(TABLE.numpy()[:64], INDEX.numpy(), 500, mode="sum", sparse=True))
  for pair in pairs:
    check(*pair)
  check(sheaf.embedding_bag(index, sheaf.quantize(table, "int4")),
        sheaf.embedding_bag(INDEX.numpy(), sheaf.quantize(TABLE.numpy(), "int4")))
  check(sheaf.embedding(index, table[:, ::2]), TABLE.numpy()[INDEX.numpy()][..., ::2])
  stream = cupy.cuda.Stream(non_blocking=True)
  with stream:  # which the default stream does not wait for
    sheaf.embedding_bag(index, table * 2, mode="sum", bad_index="skip")  # what a stream needs is made at its first use
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
      busy()
    late = table * 2
    out = sheaf.embedding_bag(index, late, mode="sum", bad_index="skip")
    assert not stream.done
    check(out, sheaf.embedding_bag(INDEX.numpy(), TABLE.numpy() * 2, mode="sum"))


def test_arrays_of_two_frameworks():
  cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
  stream, table = cupy.cuda.Stream(non_blocking=True), TABLE.cuda()
  torch.cuda.synchronize()
  with stream:
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
      busy()
    index = cupy.asarray(INDEX.numpy()) * 1
    out = sheaf.embedding_bag(index, table, mode="sum", bad_index="skip")  # in PyTorch's stream, after CuPy's
  assert equal(out, sheaf.embedding_bag(INDEX, TABLE, mode="sum"))


def test_jax_arrays():
  jax = pytest.importorskip("jax", reason="JAX is not installed here")
  if jax.devices()[0].platform == "cpu":
    pytest.skip("this JAX has no CUDA device")
  index, table = jax.numpy.asarray(INDEX.numpy().astype(np.int32)), jax.numpy.asarray(TABLE.numpy())
  for mode in ("sum", "mean", "max"):
    out = sheaf.embedding_bag(index, table * 2, mode=mode)
    assert isinstance(out, jax.Array) and out.devices() == table.devices()
    assert np.asarray(out).tobytes() == sheaf.embedding_bag(INDEX.numpy(), TABLE.numpy() * 2, mode=mode).tobytes()
  assert np.asarray(sheaf.embedding_backward(table[:7], index[0], 500, sparse=True)[1] * 1).shape[1] == 48
  with pytest.raises(ValueError, match="read-only"):
    sheaf.embedding(index, table, out=jax.numpy.zeros((64, 7, 48)))
