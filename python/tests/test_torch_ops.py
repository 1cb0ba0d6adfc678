"""sheaf.torch beside PyTorch itself: forward, gradients dense and sparse, errors, custom ops, torch.compile, export."""
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle_numpy as oracle

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
import torch.nn.functional as F

import sheaf
import sheaf.torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 4e-2}
W = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)
I = torch.tensor([[1, 5, 1], [19, 0, 5]])


def near(ours, theirs, size=1.0):
  assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.is_sparse == theirs.is_sparse
  ours, theirs = ours.to_dense(), theirs.to_dense()
  bound = TOLERANCE[ours.dtype] * (size + theirs.double().abs())
  assert bool(((ours.double() - theirs.double()).abs() <= bound).all()) or torch.equal(ours.isnan(), theirs.isnan())


def compare(ours, theirs, inputs, size=25.0, positive=False):
  """The same call of both, forward and backward."""
  outputs, gradients = [], []
  for call in (ours, theirs):
    leaves = [x.detach().requires_grad_() if x is not None and x.is_floating_point() else x for x in inputs]
    out = call(*leaves)
    torch.manual_seed(1)
    grad = torch.rand(out.shape) if positive else torch.randn(out.shape)
    wanted = [x for x in leaves if x is not None and x.is_floating_point()]
    outputs.append(out.detach())
    gradients.append(torch.autograd.grad(out, wanted, grad.to(out.dtype)))
  near(*outputs, size)
  for mine, other in zip(*gradients):
    near(mine, other, size)


def tensor(array):
  """Of NumPy's bfloat16 too."""
  if array.dtype.name == "bfloat16":
    return torch.from_numpy(array.astype(np.float32)).bfloat16()
  return torch.from_numpy(array if min(array.strides, default=0) >= 0 else array.copy())


@given(oracle.bag_problems(), st.booleans(), st.booleans())
def test_embedding(p, scale, sparse):
  options = {"padding_idx": p.padding, "scale_grad_by_freq": scale, "sparse": sparse and not scale}  # not PyTorch's
  indices = tensor(p.indices)
  compare(lambda w: sheaf.torch.embedding(indices, w, **options), lambda w: F.embedding(indices, w, **options),
          [tensor(p.table)])


@given(oracle.bag_problems(), st.sampled_from(["sum", "mean", "max"]), st.booleans(), st.booleans(), st.booleans())
def test_embedding_bag(p, mode, weighted, sparse, with_end):
  if not p.bags or p.table.shape[1] == 0:
    return  # refused by PyTorch
  weighted, sparse = weighted and mode == "sum", sparse and mode != "max"
  indices = tensor(p.indices)
  offsets = tensor(p.offsets_with_end if with_end else p.offsets).to(indices.dtype)
  options = {"mode": mode, "sparse": sparse, "include_last_offset": with_end, "padding_idx": p.padding}
  weights = tensor(p.flat_weights) if weighted else None
  compare(lambda w, s: sheaf.torch.embedding_bag(indices, w, offsets, per_sample_weights=s, **options),
          lambda w, s: F.embedding_bag(indices, w, offsets, per_sample_weights=s, **options),
          [tensor(p.table), weights])


@given(oracle.segment_problems([np.dtype("float64"), np.dtype("float32")]),
       st.sampled_from(["sum", "mean", "max", "min", "prod"]), st.booleans())
def test_segment_reduce(problem, reduce, by_offsets):
  data, ids, segments = problem
  if 0 in data.shape:
    return
  lengths = torch.from_numpy(np.bincount(ids, minlength=segments).astype(ids.dtype))
  where = {"offsets": torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])} if by_offsets else {"lengths": lengths}
  data = tensor(data if data.ndim > 1 else data[:, None])  # PyTorch's gradient wants two dimensions
  data = torch.where(data == 0, 1, data)  # PyTorch's gradient of a product with zeros is its own
  # PyTorch shares the gradient of equal extremes only where it is positive.
  compare(lambda x: sheaf.torch.segment_reduce(x, reduce, **where),
          lambda x: torch.segment_reduce(x, reduce, **where), [data], size=1e4 if reduce == "prod" else 25,
          positive=True)


@given(oracle.segment_problems(), st.sampled_from(["sum", "mean", "max", "min", "prod"]))
def test_unsorted_segments_beside_scatter_reduce(problem, reduce):
  data, ids, segments = problem
  if data.dtype.itemsize == 2 and reduce == "prod":
    data = np.sign(data).astype(data.dtype)  # products of 25 numbers leave f16
  order = np.random.default_rng(5).permutation(len(ids))
  data, ids = tensor(data[order]).requires_grad_(), tensor(ids[order])
  grad = torch.rand((segments,) + data.shape[1:]).to(data.dtype)
  index = ids.long().reshape((-1,) + (1,) * (data.dim() - 1)).expand_as(data)
  theirs = torch.full(grad.shape, 1 if reduce == "prod" else 0, dtype=data.dtype).scatter_reduce(
    0, index, data, {"max": "amax", "min": "amin"}.get(reduce, reduce), include_self=False)
  near(getattr(sheaf, f"unsorted_segment_{reduce}")(data.detach(), ids, segments), theirs.detach(), 1e3)
  if data.numel():
    values = {} if reduce in ("sum", "mean") else {"data": data.detach()}
    if reduce in ("max", "min"):
      values["ties"] = "split"
    near(getattr(sheaf, f"unsorted_segment_{reduce}_backward")(grad, ids, **values),
         torch.autograd.grad(theirs, data, grad)[0], 1e3)


def test_a_matrix_of_bags_and_other_layouts():
  for w in (W, W[:, :2], W.t().contiguous().t(), W[::2].expand(10, 3)):
    index = I % w.shape[0]
    compare(lambda w: sheaf.torch.embedding_bag(index, w, mode="sum"),
            lambda w: F.embedding_bag(index, w.contiguous(), mode="sum"), [w.detach()])
    assert torch.equal(sheaf.torch.embedding(index, w), F.embedding(index, w))
  leaf = W.clone().requires_grad_()
  sheaf.torch.embedding(I, leaf).sum().backward()  # a gradient that is one number, expanded
  assert leaf.grad.sum() == I.numel() * 3


def test_bags_scaled_by_frequency_are_divided_by_the_rows_own_count():
  """PyTorch's embedding_bag takes the counts of other rows there; its embedding does not."""
  leaves = [W.clone().requires_grad_() for _ in range(2)]
  sheaf.torch.embedding_bag(I, leaves[0], mode="sum", scale_grad_by_freq=True).sum().backward()
  F.embedding(I, leaves[1], scale_grad_by_freq=True).sum(1).sum().backward()
  assert torch.equal(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("call", [
  lambda m: m.embedding(I * 10, W),
  lambda m: m.embedding(I.float(), W),
  lambda m: m.embedding(I, W[0]),
  lambda m: m.embedding([1, 2], W),
  lambda m: m.embedding(1, W),
  lambda m: m.embedding(I, None),
  lambda m: m.embedding(I, W.numpy()),
  lambda m: m.embedding(I, W, padding_idx=20),
  lambda m: m.embedding_bag(I, W, torch.tensor([0])),
  lambda m: m.embedding_bag(I[0], W),
  lambda m: m.embedding_bag(I[None], W),
  lambda m: m.embedding_bag(I, W, mode="median"),
  lambda m: m.embedding_bag(I, W, mode="max", sparse=True),
  lambda m: m.embedding_bag(I, W, mode="max", scale_grad_by_freq=True),
  lambda m: m.embedding_bag(I, W, per_sample_weights=torch.ones(2, 3, dtype=torch.float64)),
  lambda m: m.embedding_bag(I, W, mode="sum", per_sample_weights=torch.ones(3, 2, dtype=torch.float64)),
  lambda m: m.embedding_bag(I, W, mode="sum", per_sample_weights=torch.ones(2, 3, dtype=torch.float32)),
  lambda m: m.embedding_bag(I, W, padding_idx=20),
  lambda m: m.embedding_bag(torch.tensor([1, 20]), W, torch.tensor([0])),
  lambda m: m.embedding_bag(torch.tensor([[1, -3]]), W, mode="sum"),
  lambda m: m.embedding_bag(torch.tensor([1, 20]), torch.nn.Parameter(W), torch.tensor([0])),
  lambda m: m.embedding_bag(I[0], W, torch.tensor([1, 2])),
  lambda m: m.embedding_bag(I[0], W, torch.tensor([0, 7])),
])
def test_errors_are_of_pytorchs_types(call):
  with pytest.raises(Exception) as theirs:
    call(F)
  with pytest.raises(type(theirs.value)):
    call(sheaf.torch)


def test_max_norm_is_refused_in_words():
  for call in (lambda: sheaf.torch.embedding(I, W, max_norm=1.0), lambda: sheaf.torch.Embedding(4, 2, max_norm=1.0),
               lambda: sheaf.torch.embedding_bag(I, W, max_norm=1.0),
               lambda: sheaf.torch.EmbeddingBag(4, 2, max_norm=1.0)):
    with pytest.raises(NotImplementedError, match="max_norm is not supported: it renormalises the table"):
      call()


def test_gradients_by_finite_differences():
  w = W[:6].clone().requires_grad_()
  s, index, offsets = torch.rand(6, dtype=torch.float64, requires_grad=True), I.flatten() % 6, torch.tensor([0, 2, 2])
  check = torch.autograd.gradcheck
  assert check(lambda w: sheaf.torch.embedding(index, w), w)
  assert torch.autograd.gradgradcheck(lambda w: sheaf.torch.embedding(index, w, padding_idx=1), w)
  for mode in ("sum", "mean", "max"):
    assert check(lambda w: sheaf.torch.embedding_bag(index, w, offsets, mode=mode), w)
  assert check(lambda w, s: sheaf.torch.embedding_bag(index, w, offsets, mode="sum", per_sample_weights=s), (w, s))
  for reduce in ("sum", "mean", "max", "min", "prod"):
    assert check(lambda w: sheaf.torch.segment_reduce(w, reduce, lengths=torch.tensor([2, 3, 1])), w)


def test_custom_ops_pass_pytorchs_own_check():
  w, s = W.clone().requires_grad_(), torch.rand(6, dtype=torch.float64, requires_grad=True)
  ops, flat, offsets = torch.ops.sheaf, I.flatten(), torch.tensor([0, 2])
  grad = torch.rand(2, 3, dtype=torch.float64)
  none = torch.empty(0, 0, dtype=torch.int64)
  for op, args in [
    (ops.embedding, (w, I, 1, True, False)),
    (ops.embedding_backward, (torch.rand(2, 3, 3), I, 20, -1, False)),
    (ops.embedding_backward_sparse, (torch.rand(2, 3, 3), I, 20, -1, False)),
    (ops.embedding_bag, (w, flat, offsets, s, "sum", False, -1, False, False)),
    (ops.embedding_bag, (w, I, None, None, "max", False, 1, False, False)),
    (ops.embedding_bag_backward, (grad, flat, offsets, None, none, 20, "mean", False, -1, False)),
    (ops.embedding_bag_backward_sparse, (grad, flat, offsets, None, 20, "mean", False, -1, False)),
    (ops.embedding_bag_weights_backward, (grad, flat, offsets, s.detach(), W, False, -1)),
    (ops.segment_reduce, (w, torch.arange(20) // 4, 5, "max")),
    (ops.segment_reduce_backward, (w[:5].detach(), torch.arange(20) // 4, W, "prod")),
  ]:
    torch.library.opcheck(op.default, args)


class Model(torch.nn.Module):
  def __init__(self, layers):
    super().__init__()
    self.rows, self.bags, self.linear = layers.Embedding(20, 4), layers.EmbeddingBag(20, 4, mode="sum"), \
      torch.nn.Linear(4, 1)

  def forward(self, x):
    return self.linear(self.bags(x) + self.rows(x).mean(1))


# inductor compiles for half a minute
@pytest.mark.parametrize("backend", ["aot_eager"] + (["inductor"] if os.environ.get("SHEAF_TEST_LONG") else []))
def test_compiled_and_exported_models(backend):
  torch.manual_seed(0)
  torch._dynamo.reset()
  ours, theirs = Model(sheaf.torch), Model(torch.nn)
  theirs.load_state_dict(ours.state_dict())
  compiled = torch.compile(ours, backend=backend, fullgraph=True)
  for out in (compiled(I), theirs(I)):
    out.square().sum().backward()
  for mine, other in zip(ours.parameters(), theirs.parameters()):
    assert torch.allclose(mine.grad, other.grad, atol=1e-6)
  text = str(torch.export.export(ours, (I,)).graph)
  assert "sheaf.embedding_bag.default" in text and "sheaf.embedding.default" in text


def test_training_with_sparse_gradients():
  torch.manual_seed(0)
  ours, theirs = sheaf.torch.EmbeddingBag(20, 4, mode="mean", sparse=True), torch.nn.EmbeddingBag(20, 4, sparse=True)
  theirs.load_state_dict(ours.state_dict())
  for layer in (ours, theirs):
    optimizer = torch.optim.SparseAdam(list(layer.parameters()), lr=0.1)
    for _ in range(5):
      optimizer.zero_grad()
      layer(I).square().sum().backward()
      assert layer.weight.grad.is_sparse
      optimizer.step()
  assert torch.allclose(ours.weight, theirs.weight, atol=1e-5)


def test_the_package_itself_takes_tensors():
  out = sheaf.embedding(I, W)
  assert isinstance(out, torch.Tensor) and torch.equal(out, W[I])
  ids, rows = sheaf.embedding_backward(W[:6].reshape(2, 3, 3), I, 20, sparse=True)
  assert isinstance(ids, torch.Tensor) and ids.tolist() == [0, 1, 5, 19] and rows.shape == (4, 3)
  assert sheaf.embedding(I.numpy(), W.bfloat16()).dtype == torch.bfloat16
  given = torch.empty(2, 3, 3, dtype=torch.float64)
  assert sheaf.embedding(I, W, out=given) is given
  with pytest.raises(TypeError, match="weight requires a gradient.*use the one of sheaf.torch"):
    sheaf.embedding(I, W.clone().requires_grad_())
  with pytest.raises(IndexError, match="50 at position 1"):
    sheaf.embedding(I * 10, W)


def test_tensors_whose_gradient_nobody_records():
  leaf = W.clone().requires_grad_()
  with torch.no_grad():
    for call in (sheaf.embedding, sheaf.torch.embedding, sheaf.torch.Embedding.from_pretrained(leaf, freeze=False)):
      out = call(I) if isinstance(call, torch.nn.Module) else call(I, leaf)
      assert torch.equal(out, W[I]) and not out.requires_grad
    assert torch.equal(sheaf.torch.embedding_bag(I, leaf, mode="sum"), sheaf.torch.embedding_bag(I, W, mode="sum"))
  with torch.inference_mode():
    assert torch.equal(sheaf.torch.embedding(I, leaf), W[I])
  assert sheaf.torch.embedding(I, leaf).requires_grad


def test_nearest_rows_and_autocast_take_tensors():
  rows, scores = sheaf.nearest(W[[2, 9]], W, 3, metric="l2")
  assert torch.equal(rows, torch.cdist(W[[2, 9]], W).topk(3, largest=False).indices) and scores[0, 0] == 0
  table = W.float()
  with sheaf.autocast("bf16"):
    out = sheaf.embedding_bag(I, table)
  assert out.dtype == torch.bfloat16 and torch.equal(out, sheaf.embedding_bag(I, table.bfloat16()))


class Old(torch.Tensor):
  """A tensor as those of PyTorch before 2.9: with __dlpack__, without its table of C functions."""

  __dlpack_c_exchange_api__ = None


def test_tensors_of_older_versions_and_derived_ones():
  weight, index = W.as_subclass(Old), I.as_subclass(Old)
  for table in (weight, weight[:, ::2], weight.bfloat16()):
    out = sheaf.embedding(index, table)
    assert isinstance(out, torch.Tensor) and torch.equal(out, table.as_subclass(torch.Tensor)[I])
  ids, rows = sheaf.embedding_backward(W[:6].reshape(2, 3, 3).as_subclass(Old), index, 20, sparse=True)
  assert isinstance(rows, torch.Tensor) and ids.tolist() == [0, 1, 5, 19]
  derived = type("Derived", (torch.Tensor,), {})
  assert isinstance(sheaf.embedding(I, W[:, ::2].as_subclass(derived)), torch.Tensor)
  with pytest.raises(BufferError, match="require gradient"):
    sheaf.embedding(index, weight.clone().requires_grad_())


def test_modes_and_meta_tensors_go_through_the_custom_op():
  with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
    fake = sheaf.torch.embedding(mode.from_tensor(I), mode.from_tensor(W))
    assert fake.shape == (2, 3, 3)
  assert sheaf.torch.embedding(I.to("meta"), W.to("meta")).shape == (2, 3, 3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms():
  flat, offsets, tables = I.flatten(), torch.tensor([0, 2]), torch.stack([W, W * 2])
  for call in (lambda m: torch.func.grad(lambda w: m.embedding(I, w).square().sum())(W),
               lambda m: torch.func.grad(lambda w: m.embedding_bag(flat, w, offsets, mode="sum").square().sum())(W),
               lambda m: torch.func.vmap(lambda i: m.embedding(i, W))(I),
               lambda m: torch.func.vmap(lambda w: m.embedding_bag(I, w, mode="mean"))(tables),
               lambda m: torch.func.vmap(torch.func.grad(lambda w, i: m.embedding(i, w).pow(2).sum()), (None, 0))(W, I),
               lambda m: torch.func.jacrev(torch.func.grad(lambda w: m.embedding(I[0], w).pow(3).sum()))(W[:, :1])):
    assert torch.allclose(call(sheaf.torch), call(F))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces_of_torchscript_hold_the_op():
  traced = torch.jit.trace(lambda i: sheaf.torch.embedding(i, W) * 2, (I,))
  assert torch.equal(traced(I.flip(0)), W[I.flip(0)] * 2)


def test_threads_train_side_by_side():
  failures = []

  def work():
    w = W.clone().requires_grad_()
    for _ in range(50):
      sheaf.torch.embedding_bag(I, w, mode="sum").sum().backward()
    if w.grad.sum() != 50 * I.numel() * 3:
      failures.append(w.grad.sum())

  workers = [threading.Thread(target=work) for _ in range(4)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
  assert not failures


def test_the_negative_bit_is_seen():
  """A conjugate's imaginary part has the other sign than what lies in memory."""
  table = W.to(torch.float32)
  view = torch._neg_view(table)
  assert torch.equal(sheaf.torch.embedding(I, view), F.embedding(I, view))
  assert torch.equal(sheaf.embedding(I, view), F.embedding(I, view))
  grads = []
  for embedding in (sheaf.torch.embedding, F.embedding):
    leaf = torch.ones(20, 1, requires_grad=True)
    found = embedding(I, leaf)
    (torch.complex(torch.zeros_like(found), found).conj() * (1 + 2j)).real.sum().backward()
    grads.append(leaf.grad)
  assert torch.equal(*grads)


def test_a_given_output_that_a_graph_holds_is_noticed():
  held, x = torch.ones(2, 3, 3, dtype=torch.float64), torch.ones(2, 3, 3, dtype=torch.float64, requires_grad=True)
  total = (x * held).sum()
  sheaf.embedding(I, W, out=held)
  with pytest.raises(RuntimeError, match="modified by an inplace operation"):
    total.backward()


def test_tangents_are_refused_not_lost():
  with torch.autograd.forward_ad.dual_level():
    dual = torch.autograd.forward_ad.make_dual(W, torch.ones_like(W))
    with pytest.raises(NotImplementedError, match="forward-mode"):
      sheaf.torch.embedding(I, dual)


def test_offsets_of_segments_begin_with_zero():
  with pytest.raises(RuntimeError, match="begin with 1"):
    sheaf.torch.segment_reduce(torch.ones(2, 1), "sum", offsets=torch.tensor([1, 3]))


def test_kept_tensors_are_matched_by_strides():
  memory = torch.arange(36, dtype=torch.float32)
  table, rows = memory[:9].reshape(3, 3), torch.tensor([2])
  with sheaf.trace():
    first = sheaf.embedding(rows, table)
    second = sheaf.embedding(rows, table.as_strided_((3, 3), (6, 1)))
  assert first.tolist() == [[6, 7, 8]] and second.tolist() == [[12, 13, 14]]
