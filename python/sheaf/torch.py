"""PyTorch's own embedding, embedding_bag and segment_reduce, computed by Sheaf.

  import sheaf.torch
  out = sheaf.torch.embedding_bag(indices, weight, offsets, mode="sum")     # as torch.nn.functional.embedding_bag
  layer = sheaf.torch.EmbeddingBag(1000, 64, mode="sum", sparse=True)       # as torch.nn.EmbeddingBag

The rules are PyTorch's: a lookup of padding_idx gives the stored row, an empty segment the identity of its reduction,
rows that share an extreme share its gradient. Gradients are dense, or with sparse=True sparse and coalesced. The
functions are custom ops (torch.ops.sheaf.*) with fake implementations, which torch.compile and torch.export keep in
the graph. CUDA tensors are worked on in the current stream; bad indices there are skipped, since to look for them would
be to wait. max_norm is not there: it would change the table in the middle of a forward pass.
"""
import torch
from torch import Tensor

from sheaf import _core
from sheaf._torch_op import BY_KERNEL, BY_NODE, Op, is_compiling, way_of

__all__ = ["Embedding", "EmbeddingBag", "embedding", "embedding_bag", "segment_reduce"]


def _padding(index):
  return None if index < 0 else index


def _policy(values):
  """What becomes of bad indices. On a CUDA device looking for them means waiting for the device, which PyTorch's own
  functions do not do either (they end the context); here such entries count as padding does."""
  return "skip" if values.is_cuda else "error"


_HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def _bare(tensor):
  """Without its gradient, which is recorded above. While none is recorded, the extension does not ask for that."""
  if tensor is None or not tensor.requires_grad or (_HAS_EXCHANGE and not torch.is_grad_enabled()):
    return tensor
  return tensor.detach()


# ---- Lookup ----------------------------------------------------------------------------------------------------------


def _lookup(weight: Tensor, indices: Tensor, padding_idx: int, scale_grad_by_freq: bool, sparse: bool) -> Tensor:
  return _core.embedding(indices, _bare(weight), _padding(padding_idx), padding="row",
                         bad_index=_policy(weight))


def _lookup_fake(weight, indices, padding_idx, scale_grad_by_freq, sparse):
  return weight.new_empty(tuple(indices.shape) + (weight.shape[1],))


def _lookup_setup(ctx, inputs, output):
  weight, indices, *ctx.options = inputs
  ctx.num_weights = weight.shape[0]
  ctx.save_for_backward(indices)


def _lookup_grad(ctx, grad):
  indices, = ctx.saved_tensors
  padding_idx, scale, sparse = ctx.options
  if sparse:
    weight_grad = _sparse(*_lookup_backward_sparse(grad, indices, ctx.num_weights, padding_idx, scale), ctx.num_weights)
  else:
    weight_grad = _lookup_backward(grad, indices, ctx.num_weights, padding_idx, scale)
  return weight_grad, None, None, None, None


def _backward(grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool) -> Tensor:
  return _core.embedding_backward(_bare(grad), indices, num_weights, _padding(padding_idx), scale_grad_by_freq,
                                  bad_index=_policy(grad))


def _backward_fake(grad, indices, num_weights, padding_idx, scale_grad_by_freq):
  return grad.new_empty((num_weights, grad.shape[-1]))


def _backward_setup(ctx, inputs, output):
  _, indices, _, *ctx.options = inputs
  ctx.save_for_backward(indices)


def _backward_grad(ctx, weight_grad):
  """The gradient of the gradient: a lookup again, without padding."""
  indices, = ctx.saved_tensors
  padding_idx, scale = ctx.options
  if scale:
    raise NotImplementedError("the gradient of a gradient that is scaled by frequency is not there")
  grad = _lookup_op(weight_grad, indices, -1, False, False)
  if padding_idx >= 0:
    grad = grad.masked_fill((indices == padding_idx).unsqueeze(-1), 0)
  return grad, None, None, None, None


def _backward_sparse(grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int,
                     scale_grad_by_freq: bool) -> tuple[Tensor, Tensor]:
  ids, rows = _core.embedding_backward(_bare(grad), indices, num_weights, _padding(padding_idx), scale_grad_by_freq,
                                       True, bad_index=_policy(grad))
  return ids.long(), rows


def _backward_sparse_fake(grad, *_):
  """Row numbers and rows, as many as are touched: known only when it is computed."""
  count = torch.library.get_ctx().new_dynamic_size()
  return grad.new_empty((count,), dtype=torch.int64), grad.new_empty((count, grad.shape[-1]))


def _sparse(ids, rows, num_weights):
  return torch.sparse_coo_tensor(ids.unsqueeze(0), rows, (num_weights, rows.shape[1]), is_coalesced=True,
                                 check_invariants=False)


_lookup_op = Op("embedding", _lookup, _lookup_fake, _lookup_setup, _lookup_grad)
_lookup_backward = Op("embedding_backward", _backward, _backward_fake, _backward_setup, _backward_grad)
_lookup_backward_sparse = Op("embedding_backward_sparse", _backward_sparse, _backward_sparse_fake)


def _check_tensors(function, weight, **others):
  for name, tensor in {"weight": weight, **others}.items():
    if not isinstance(tensor, Tensor):
      raise TypeError(f"{function}(): argument '{name}' must be Tensor, not {type(tensor).__name__}")
    if tensor.device != weight.device:
      raise RuntimeError(f"Expected all tensors to be on the same device, but {name} is on {tensor.device}, weight on "
                         f"{weight.device}")


def _check_indices(indices, name):
  if indices.dtype not in (torch.int32, torch.int64):
    raise RuntimeError(f"Expected tensor for argument '{name}' to have scalar type Long or Int, but it has "
                       f"{indices.dtype}")


def _check_weight(weight):
  if weight.dim() != 2:
    raise RuntimeError(f"'weight' must be 2-D, but it has {weight.dim()} dimensions")


def _check_norm(max_norm):
  if max_norm is not None:
    raise NotImplementedError("max_norm is not supported: it renormalises the table in place during the forward pass. "
                              "Renormalise after the optimizer's step instead: torch.renorm(weight, 2, 0, max_norm)")


def _check_padding(padding_idx, num_weights, kind=AssertionError):
  """As a number that counts from the front, -1 for none."""
  if padding_idx is None:
    return -1
  if not -num_weights <= padding_idx < num_weights:
    raise kind(f"Padding_idx must be within num_embeddings: {padding_idx} of {num_weights}")
  return padding_idx % num_weights


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
  """torch.nn.functional.embedding."""
  if max_norm is None and type(input) is Tensor and not is_compiling():
    way = way_of(input, weight)
    try:
      if way == BY_KERNEL:
        return _core.embedding(input, weight, padding_idx, padding="row",
                               bad_index="skip" if weight.is_cuda else "error")
      if way == BY_NODE and padding_idx is None:
        return _lookup_op.apply(weight, input, -1, scale_grad_by_freq, sparse)
    except (AttributeError, TypeError, ValueError):
      pass  # said in PyTorch's terms below
  _check_tensors("embedding", weight, indices=input)
  _check_norm(max_norm)
  _check_weight(weight)
  _check_indices(input, "indices")
  return _lookup_op(weight, input, _check_padding(padding_idx, weight.shape[0]), scale_grad_by_freq, sparse)


# ---- Bags ------------------------------------------------------------------------------------------------------------


def _bag(weight: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str,
         include_last_offset: bool, padding_idx: int, scale_grad_by_freq: bool, sparse: bool) -> tuple[Tensor, Tensor]:
  both = _core.embedding_bag(indices, _bare(weight), offsets, mode, _bare(weights), include_last_offset,
                             _padding(padding_idx), return_arg=mode == "max", bad_index=_policy(weight))
  return both if mode == "max" else (both, indices.new_empty((0, 0)))


def _bag_fake(weight, indices, offsets, weights, mode, include_last_offset, padding_idx, scale_grad_by_freq, sparse):
  bags = indices.shape[0] if offsets is None else offsets.shape[0] - int(include_last_offset)
  shape = (bags, weight.shape[1])
  return weight.new_empty(shape), indices.new_empty(shape if mode == "max" else (0, 0))


def _bag_setup(ctx, inputs, output):
  weight, indices, offsets, weights, *ctx.options = inputs
  ctx.num_weights = weight.shape[0]
  needs_table = weights is not None and ctx.needs_input_grad[3]
  ctx.save_for_backward(weight if needs_table else None, indices, offsets, weights, output[1])
  ctx.mark_non_differentiable(output[1])


def _bag_grad(ctx, grad, _):
  weight, indices, offsets, weights, arg = ctx.saved_tensors
  mode, last, padding_idx, scale, sparse = ctx.options
  weight_grad = weights_grad = None
  bags = (grad, indices, offsets, weights)
  if ctx.needs_input_grad[0] and sparse:
    weight_grad = _sparse(*_bag_backward_sparse_op(*bags, ctx.num_weights, mode, last, padding_idx, scale),
                          ctx.num_weights)
  elif ctx.needs_input_grad[0]:
    weight_grad = _bag_backward_op(*bags, arg, ctx.num_weights, mode, last, padding_idx, scale)
  if ctx.needs_input_grad[3]:
    weights_grad = _bag_weights_backward_op(*bags, weight, last, padding_idx)
  return weight_grad, None, None, weights_grad, None, None, None, None, None


def _bag_backward(grad: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor | None, arg: Tensor,
                  num_weights: int, mode: str, include_last_offset: bool, padding_idx: int,
                  scale_grad_by_freq: bool) -> Tensor:
  return _core.embedding_bag_backward(_bare(grad), indices, num_weights, offsets, mode, _bare(weights),
                                      include_last_offset, _padding(padding_idx), scale_grad_by_freq,
                                      arg=arg if mode == "max" else None, bad_index=_policy(grad))


def _bag_backward_fake(grad, indices, offsets, weights, arg, num_weights, *_):
  return grad.new_empty((num_weights, grad.shape[1]))


def _bag_backward_sparse(grad: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor | None,
                         num_weights: int, mode: str, include_last_offset: bool, padding_idx: int,
                         scale_grad_by_freq: bool) -> tuple[Tensor, Tensor]:
  ids, rows = _core.embedding_bag_backward(_bare(grad), indices, num_weights, offsets, mode, _bare(weights),
                                           include_last_offset, _padding(padding_idx), scale_grad_by_freq, True,
                                           bad_index=_policy(grad))
  return ids.long(), rows


def _bag_weights_backward(grad: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor, weight: Tensor,
                          include_last_offset: bool, padding_idx: int) -> Tensor:
  return _core.embedding_bag_backward(_bare(grad), indices, weight.shape[0], offsets, "sum", _bare(weights),
                                      include_last_offset, _padding(padding_idx), weight=_bare(weight),
                                      want="weights", bad_index=_policy(grad))


def _bag_weights_backward_fake(grad, indices, offsets, weights, *_):
  return weights.new_empty(weights.shape)


_bag_op = Op("embedding_bag", _bag, _bag_fake, _bag_setup, _bag_grad)
_bag_backward_op = Op("embedding_bag_backward", _bag_backward, _bag_backward_fake)
_bag_backward_sparse_op = Op("embedding_bag_backward_sparse", _bag_backward_sparse, _backward_sparse_fake)
_bag_weights_backward_op = Op("embedding_bag_weights_backward", _bag_weights_backward, _bag_weights_backward_fake)


def _check_bags(input, offsets, mode, scale_grad_by_freq, sparse, weights):
  if mode not in ("sum", "mean", "max"):
    raise ValueError("mode has to be one of sum, mean or max")
  if input.dim() == 2 and offsets is not None:
    raise ValueError("if input is 2D, then offsets has to be None, since each of its rows is a bag")
  if input.dim() == 1 and (offsets is None or offsets.dim() != 1):
    raise ValueError("offsets has to be a 1D Tensor when input is 1D, but got "
                     f"{'None' if offsets is None else f'{offsets.dim()}D'}")
  if input.dim() not in (1, 2):
    raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}")
  if mode == "max" and scale_grad_by_freq:
    raise ValueError("max mode does not support scaling the gradient by the frequency")
  if mode == "max" and sparse:
    raise ValueError("max mode does not support sparse weights")
  if weights is not None and mode != "sum":
    raise NotImplementedError(f"per_sample_weights is only supported for mode='sum' (got mode='{mode}')")
  if weights is not None and weights.shape != input.shape:
    raise ValueError(f"expected per_sample_weights of shape {tuple(weights.shape)} to have the shape of input, "
                     f"{tuple(input.shape)}")


def _checked_bag(*args):
  """What the kernel refuses, in the type that PyTorch's has for bags."""
  if is_compiling():
    return _bag_op(*args)[0]
  try:
    return _bag_op(*args)[0]
  except (IndexError, ValueError) as error:
    raise RuntimeError(str(error)) from error


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
  """torch.nn.functional.embedding_bag."""
  plain = max_norm is None and per_sample_weights is None and mode != "max" and type(input) is Tensor
  if plain and not is_compiling():
    way = way_of(input, weight, offsets)
    try:
      if way == BY_KERNEL:
        return _core.embedding_bag(input, weight, offsets, mode, None, include_last_offset, padding_idx,
                                   bad_index="skip" if weight.is_cuda else "error")
      if way == BY_NODE and padding_idx is None:
        return _bag_op.apply(weight, input, offsets, None, mode, include_last_offset, -1, scale_grad_by_freq, sparse)[0]
    except (AttributeError, IndexError, TypeError, ValueError):
      pass
  given = {"offsets": offsets, "per_sample_weights": per_sample_weights}
  _check_tensors("embedding_bag", weight, indices=input, **{k: v for k, v in given.items() if v is not None})
  _check_norm(max_norm)
  _check_weight(weight)
  _check_indices(input, "indices")
  _check_bags(input, offsets, mode, scale_grad_by_freq, sparse, per_sample_weights)
  padding_idx = _check_padding(padding_idx, weight.shape[0], RuntimeError)
  return _checked_bag(weight, input, offsets, per_sample_weights, mode, include_last_offset, padding_idx,
                      scale_grad_by_freq, sparse)


# ---- Segments --------------------------------------------------------------------------------------------------------


def _segments(data: Tensor, ids: Tensor, num_segments: int, reduce: str) -> Tensor:
  return getattr(_core, f"segment_{reduce}")(_bare(data), ids, num_segments, empty="identity")


def _segments_fake(data, ids, num_segments, reduce):
  return data.new_empty((num_segments,) + tuple(data.shape[1:]))


def _segments_setup(ctx, inputs, output):
  data, ids, _, ctx.reduce = inputs
  ctx.save_for_backward(ids, None if ctx.reduce in ("sum", "mean") else data)


def _segments_grad(ctx, grad):
  ids, data = ctx.saved_tensors
  return _segments_backward_op(grad, ids, data, ctx.reduce), None, None, None


def _segments_backward(grad: Tensor, ids: Tensor, data: Tensor | None, reduce: str) -> Tensor:
  return getattr(_core, f"segment_{reduce}_backward")(_bare(grad), ids, data=_bare(data), ties="split")


def _segments_backward_fake(grad, ids, data, reduce):
  return grad.new_empty((ids.shape[0],) + tuple(grad.shape[1:]))


_segments_op = Op("segment_reduce", _segments, _segments_fake, _segments_setup, _segments_grad)
_segments_backward_op = Op("segment_reduce_backward", _segments_backward, _segments_backward_fake)


def segment_reduce(data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
                   offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False,
                   initial: float | None = None) -> Tensor:
  """torch.segment_reduce along axis 0, over lengths, or offsets with their end."""
  if reduce not in ("sum", "mean", "max", "min", "prod"):
    raise RuntimeError(f"unsupported reduction {reduce!r}; it is sum, mean, max, min or prod")
  if indices is not None or axis != 0 or initial is not None:
    raise NotImplementedError("segment_reduce: indices, an axis other than 0 and initial are not supported")
  if (lengths is None) == (offsets is None):
    raise RuntimeError("segment_reduce: either lengths or offsets are needed")
  if lengths is None:
    if not unsafe and offsets.numel() > 0 and int(offsets.reshape(-1)[0]) != 0:
      raise RuntimeError(f"segment_reduce: offsets begin with {int(offsets.reshape(-1)[0])}; they must begin with 0")
    lengths = offsets.diff()
  if lengths.dim() != 1:
    raise RuntimeError(f"segment_reduce: lengths have {lengths.dim()} dimensions; along axis 0 there is 1")
  if not unsafe and bool((lengths < 0).any()):
    raise RuntimeError("segment_reduce: lengths contains negative value")
  if not unsafe and int(lengths.sum()) != data.shape[0]:
    raise RuntimeError(f"segment_reduce: lengths add up to {int(lengths.sum())}, but data has {data.shape[0]} rows")
  ids = torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths,
                                output_size=data.shape[0])
  return _segments_op(data, ids, lengths.shape[0], reduce)


# ---- Modules ---------------------------------------------------------------------------------------------------------


class Embedding(torch.nn.Embedding):
  """torch.nn.Embedding, computed by Sheaf."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    _check_norm(self.max_norm)

  def forward(self, input):
    return embedding(input, self.weight, self.padding_idx, None, self.norm_type, self.scale_grad_by_freq, self.sparse)


class EmbeddingBag(torch.nn.EmbeddingBag):
  """torch.nn.EmbeddingBag, computed by Sheaf."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    _check_norm(self.max_norm)

  def forward(self, input, offsets=None, per_sample_weights=None):
    return embedding_bag(input, self.weight, offsets, None, self.norm_type, self.scale_grad_by_freq, self.mode,
                         self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx)
