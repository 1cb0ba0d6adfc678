"""Arrays on a CUDA device: the same functions, the framework's stream, the CPU's bits. Skipped without a device."""
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
if not torch.cuda.is_available():
  pytest.skip("there is no CUDA device here", allow_module_level=True)

import sheaf
import sheaf.torch

if not sheaf.info()["devices"]:
  pytest.skip("this package was built without CUDA", allow_module_level=True)

torch.manual_seed(0)
TABLE = torch.randn(500, 48)
INDEX = torch.randint(0, 500, (64, 7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_bits_are_the_cpus(dtype):
  table = TABLE.to(dtype)
  for call in (lambda i, t: sheaf.embedding(i, t), lambda i, t: sheaf.embedding_bag(i, t, mode="sum"),
               lambda i, t: sheaf.embedding_bag(i, t, mode="mean", padding_idx=3),
               lambda i, t: sheaf.embedding_bag(i, t, mode="max"),
               lambda i, t: sheaf.embedding_backward(t[:64, None].expand(64, 7, 48), i, 500),
               lambda i, t: sheaf.embedding_bag_backward(t[:64], i, 500, mode="sum"),
               lambda i, t: sheaf.unsorted_segment_sum(t, i.flatten()[:448].repeat(2)[:500] % 50, 50)):
    device = call(INDEX.cuda(), table.cuda())
    assert device.is_cuda
    assert torch.equal(device.cpu(), call(INDEX, table))


def test_work_is_in_the_order_of_the_current_stream():
  table, index = TABLE.cuda(), INDEX.cuda()
  stream = torch.cuda.Stream()
  stream.wait_stream(torch.cuda.current_stream())
  with torch.cuda.stream(stream):
    big = torch.randn(4000, 4000, device="cuda")
    for _ in range(20):
      big = big @ big / 4000
    moved = table + 0 * big[0, 0].nan_to_num()
    out = sheaf.embedding_bag(index, moved, mode="sum", bad_index="skip")
  stream.synchronize()
  assert torch.equal(out.cpu(), sheaf.embedding_bag(INDEX, TABLE, mode="sum"))


def test_gradients():
  leaves = [TABLE.cuda().requires_grad_(), TABLE.clone().requires_grad_()]
  for leaf, index in zip(leaves, (INDEX.cuda(), INDEX)):
    sheaf.torch.embedding_bag(index, leaf, mode="mean").square().sum().backward()
  assert torch.allclose(leaves[0].grad.cpu(), leaves[1].grad, atol=1e-6)


def test_bad_indices_and_mixed_devices_are_named():
  with pytest.raises(IndexError, match="500 at position 0"):
    sheaf.embedding(torch.tensor([500], device="cuda"), TABLE.cuda())
  with pytest.raises(ValueError, match="all must lie on one"):
    sheaf.embedding(INDEX, TABLE.cuda())
  assert torch.equal(torch.ones(3, device="cuda").cpu(), torch.ones(3)), "the context lives"


def test_a_plan_on_a_device():
  plan = sheaf.Plan("lookup", dtype="f32", index_dtype="i64", rows=500, dim=48, indices=448, device="cuda")
  out = torch.empty(64, 7, 48, device="cuda")
  plan.run(table=TABLE.cuda(), indices=INDEX.cuda(), out=out)
  assert torch.equal(out.cpu(), TABLE[INDEX])


def test_cupy_arrays():
  cupy = pytest.importorskip("cupy", reason="CuPy is not installed here")
  out = sheaf.embedding(cupy.asarray(INDEX.numpy()), cupy.asarray(TABLE.numpy()))
  assert isinstance(out, cupy.ndarray)
  assert np.array_equal(cupy.asnumpy(out), TABLE.numpy()[INDEX.numpy()])
