"""sheaf.torch on a CUDA device: autograd, modules, streams, graphs, torch.compile. Skipped without a device."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
if not torch.cuda.is_available():
  pytest.skip("there is no CUDA device here", allow_module_level=True)

import torch.nn.functional as F

import sheaf
import sheaf.torch

if not sheaf.info()["devices"]:
  pytest.skip("this package was built without CUDA", allow_module_level=True)

torch.manual_seed(0)
TABLE = torch.randn(500, 48)
INDEX = torch.randint(0, 500, (64, 7))
OFFSETS = torch.arange(0, 448, 8)


def gradients(call, device, *leaves):
  """Output and gradients of a call on a device, for a gradient of the output that is the same everywhere."""
  leaves = [leaf.to(device, copy=True).requires_grad_() for leaf in leaves]
  out = call(device, *leaves)
  torch.manual_seed(1)
  grads = torch.autograd.grad(out, leaves, torch.randn(out.shape).to(device))
  return [out.detach()] + [g.to_dense() for g in grads]


CALLS = {
  "embedding": lambda d, w: sheaf.torch.embedding(INDEX.to(d), w, padding_idx=3),
  "embedding, sparse": lambda d, w: sheaf.torch.embedding(INDEX.to(d), w, sparse=True),
  "scaled": lambda d, w: sheaf.torch.embedding(INDEX.to(d), w, scale_grad_by_freq=True),
  "sum": lambda d, w: sheaf.torch.embedding_bag(INDEX.to(d), w, mode="sum"),
  "sum, sparse": lambda d, w: sheaf.torch.embedding_bag(INDEX.flatten().to(d), w, OFFSETS.to(d), mode="sum",
                                                        sparse=True),
  "mean, padding": lambda d, w: sheaf.torch.embedding_bag(INDEX.flatten().to(d), w, OFFSETS.to(d), padding_idx=3),
  "max": lambda d, w: sheaf.torch.embedding_bag(INDEX.to(d), w, mode="max"),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_have_the_cpus_bits(name):
  for mine, other in zip(gradients(CALLS[name], "cuda", TABLE), gradients(CALLS[name], "cpu", TABLE)):
    assert mine.is_cuda and torch.equal(mine.cpu(), other)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_weights_and_segments_too(reduce):
  lengths = torch.tensor([5, 0, 7, 488])
  calls = [(lambda d, x: sheaf.torch.segment_reduce(x, reduce, lengths=lengths.to(d)), [TABLE.sign()])]
  if reduce == "sum":
    calls.append((lambda d, w, s: sheaf.torch.embedding_bag(INDEX.to(d), w, mode="sum", per_sample_weights=s),
                  [TABLE, torch.rand(64, 7)]))
  for call, leaves in calls:
    for mine, other in zip(gradients(call, "cuda", *leaves), gradients(call, "cpu", *leaves)):
      assert torch.equal(mine.cpu().nan_to_num(9), other.nan_to_num(9))  # the mean of nothing is NaN


def test_beside_pytorchs_own():
  ours, theirs = sheaf.torch.EmbeddingBag(500, 48, device="cuda"), torch.nn.EmbeddingBag(500, 48, device="cuda")
  theirs.load_state_dict(ours.state_dict())
  for layer in (ours, theirs):
    layer(INDEX.cuda()).square().sum().backward()
  assert torch.allclose(ours.weight.grad, theirs.weight.grad, atol=1e-6)
  w = TABLE.cuda()
  assert torch.equal(sheaf.torch.embedding(INDEX.cuda(), w), F.embedding(INDEX.cuda(), w))


def test_training_on_a_side_stream():
  """Forward and backward in the order of that stream, in which the table changes between steps."""
  results = []
  for layers, stream in ((sheaf.torch, torch.cuda.Stream()), (torch.nn, torch.cuda.Stream())):
    torch.manual_seed(0)
    layer = layers.EmbeddingBag(500, 48, mode="sum", sparse=True, device="cuda")
    index = INDEX.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
      optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
      for _ in range(5):
        optimizer.zero_grad()
        torch.cuda._sleep(2_000_000)
        layer(index).square().mean().backward()
        optimizer.step()
    stream.synchronize()
    results.append(layer.weight.detach())
  assert torch.allclose(*results, atol=1e-5)


def test_nothing_is_waited_for():
  table, index, stream = TABLE.cuda().requires_grad_(), INDEX.cuda(), torch.cuda.Stream()
  sheaf.torch.embedding_bag(index, table).sum().backward()
  torch.cuda.synchronize()
  with torch.cuda.stream(stream):
    sheaf.torch.embedding_bag(index, table).sum().backward()  # what a stream needs is made at its first use
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    sheaf.torch.embedding_bag(index, table).sum().backward()
    assert not stream.query()
  torch.cuda.synchronize()
  assert torch.isfinite(table.grad).all()


def test_a_graph_of_the_device():
  table, index = TABLE.cuda(), INDEX.cuda()
  stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
  torch.cuda.synchronize()
  with torch.cuda.stream(stream):
    for _ in range(2):
      sheaf.torch.embedding_bag(index, table, mode="sum")
  torch.cuda.synchronize()
  with torch.cuda.graph(graph, stream=stream):
    out = sheaf.torch.embedding_bag(index, table, mode="sum")
  for turn in range(3):
    table.copy_(TABLE * (turn + 1))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), sheaf.embedding_bag(INDEX, TABLE * (turn + 1), mode="sum"))


class Model(torch.nn.Module):
  def __init__(self, layers):
    super().__init__()
    self.rows, self.bags, self.linear = layers.Embedding(500, 8), layers.EmbeddingBag(500, 8, mode="sum"), \
      torch.nn.Linear(8, 1)

  def forward(self, x):
    return self.linear(self.bags(x) + self.rows(x).mean(1))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models(backend):
  torch.manual_seed(0)
  ours, theirs = Model(sheaf.torch).cuda(), Model(torch.nn).cuda()
  theirs.load_state_dict(ours.state_dict())
  index = INDEX.cuda()
  torch._dynamo.reset()
  compiled = torch.compile(ours, backend=backend, fullgraph=True)
  for call in (compiled, theirs):
    call(index).square().sum().backward()
  for mine, other in zip(ours.parameters(), theirs.parameters()):
    assert torch.allclose(mine.grad, other.grad, atol=1e-3, rtol=1e-4)


def test_bad_indices_are_skipped_and_mixed_devices_refused():
  bad = torch.tensor([[1, 500, 2]], device="cuda")
  out = sheaf.torch.embedding_bag(bad, TABLE.cuda(), mode="sum")
  assert torch.equal(out.cpu(), sheaf.embedding_bag(torch.tensor([[1, 2]]), TABLE, mode="sum"))
  leaf = TABLE.cuda().requires_grad_()
  sheaf.torch.embedding(bad, leaf, sparse=True).sum().backward()
  assert leaf.grad.coalesce().indices().tolist() == [[1, 2]]
  for args in ((INDEX, TABLE.cuda()), (INDEX.cuda(), TABLE)):
    with pytest.raises(RuntimeError):
      F.embedding(*args)
    with pytest.raises(RuntimeError, match="same device"):
      sheaf.torch.embedding(*args)
