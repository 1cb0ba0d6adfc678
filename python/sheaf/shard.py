"""Tables spread over ranks: planning, which needs no ranks, and, under mpi4py, doing it.

  best = sheaf.shard.plan("lookup", (4,), rows=10**9, dim=64, indices=(4096,), place={"table": "S(0)"}).best

  mesh = sheaf.shard.Mesh((MPI.COMM_WORLD.size,), MPI.COMM_WORLD)
  table = mesh.shard(my_rows, "S(0)", (rows, dim))        # this rank has these rows of the table
  indices = mesh.replicate(my_indices)
  out = sheaf.shard.embedding(indices, table, out="R")    # collective: every rank calls it
  out.local                                               # this rank's part of the result, a NumPy array

Placements are written "R" (whole on every rank), "S(0)" (cut along dimension 0), "P(sum)" (terms still to be added);
a mesh of several dimensions has one for each. Collective functions are called by every rank in the same order; when one
rank finds something wrong, all of them raise its error.
"""
import typing

from sheaf import _core, _kinds

# What an op reads, in the order of its placements.
_INPUTS = {"lookup": ("table", "indices"), "lookup_backward": ("grad_out", "indices"),
           "bag_max_backward": ("grad_out", "arg")}


def _inputs_of(kind):
  if kind in _INPUTS:
    return _INPUTS[kind]
  if kind.startswith("bag_"):
    return ("grad_out" if kind.endswith("_backward") else "table", "indices", "offsets")
  return ("grad_out" if kind.endswith("_backward") else "data", "ids")


class Strategies(typing.NamedTuple):
  """Ways to compute an op on a mesh: all of them, the best one (None when none fits), and why in words. Each is a dict:
  placements of out and inputs, microseconds, bytes_moved, bytes_memory ..."""

  all: list[dict[str, typing.Any]]
  best: dict[str, typing.Any] | None
  reason: str


def plan(kind: str, mesh: int | typing.Sequence[int], *, rows: int, dim: int, indices: int | typing.Sequence[int],
         bags: int = 0, bag_form: str = "offsets", dtype: str = "f32", index_dtype: str = "i64",
         place: dict[str, typing.Any] | None = None, out: typing.Any = None, latency_us: float = 0,
         bandwidth_gbs: float = 0, memory_gbs: float = 0, memory_limit: float = 0,
         compatible: bool = False) -> Strategies:
  """Every way to compute an op on a mesh of these sizes, and the best one. Needs no ranks.

  kind: "lookup", "bag_sum", "segment_max_backward" ...; indices: their shape (segments: of the ids, with rows the
  number of data rows and bags the number of segments). place: where inputs lie now, by name ("table", "indices",
  "offsets", "grad_out", "data", "ids"), "R" when not said; out: where the result shall lie. The rest is what moving
  costs (0: an assumed default) and the bytes a rank may use. compatible: exactly PyTorch DTensor's list (lookups).
  """
  mesh = (mesh,) if isinstance(mesh, int) else tuple(mesh)
  names, place = _inputs_of(kind), dict(place or {})
  unknown = set(place) - set(names)
  if unknown:
    raise ValueError(f"{kind} has no input {', '.join(sorted(unknown))}; it has {', '.join(names)}")
  inputs = [place.get(name, ("R",) * len(mesh)) for name in names]
  if bag_form == "matrix":
    inputs = inputs[:2]
  shape = (indices,) if isinstance(indices, int) else tuple(indices)
  found, best, reason = _core.strategies(
    kind=kind, mesh=mesh, dtype=dtype, index_dtype=index_dtype, rows=rows, dim=dim, index_shape=shape, bags=bags,
    bag_form=bag_form, inputs=inputs, out=out, compatible=compatible,
    profile=(float(latency_us), float(bandwidth_gbs), float(memory_gbs), float(memory_limit)))
  return Strategies(found, None if best is None else found[best], reason)


class Tensor:
  """A tensor that is spread over a mesh: `shape` and `dtype` of the whole, `placements`, and this rank's part, `local`.
  """

  def __init__(self, made, mesh):
    self._made, self.mesh = made, mesh

  @property
  def shape(self):
    return self._made.shape

  @property
  def dtype(self):
    return self._made.dtype

  @property
  def placements(self):
    return self._made.placements

  @property
  def local(self):
    """This rank's part: the array it was made of, or a NumPy array around memory of Sheaf's."""
    local = self._made.local
    return _kinds.to_numpy(local) if isinstance(local, _core.Memory) else local

  def redistribute(self, placements):
    """The same tensor lying otherwise. Collective."""
    return Tensor(self._made.redistribute(placements), self.mesh)

  def __repr__(self):
    return f"shard.Tensor({self.dtype} {self.shape}, {' '.join(self.placements)})"


class Mesh:
  """An n-dimensional array of ranks, numbered row by row, over a communicator of mpi4py; None: this process alone.
  Collective."""

  def __init__(self, shape, comm=None):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if comm is None:
      self._made = _core.Mesh(shape, "self", 0, None)
    else:
      from mpi4py import MPI
      self._made = _core.Mesh(shape, "mpi", MPI._addressof(comm), comm)

  @property
  def shape(self):
    return self._made.shape

  @property
  def rank(self):
    return self._made.rank

  @property
  def statistics(self):
    """What this rank has sent so far."""
    return self._made.statistics

  def local_shape(self, shape, placements):
    """The shape of this rank's part of a tensor, and where it begins in each dimension."""
    return self._made.local_shape(placements, shape)

  def shard(self, local, placements, shape):
    """A tensor of this shape around this rank's part of it, which must have the shape that local_shape says."""
    return Tensor(self._made.wrap(local, placements, tuple(shape)), self)

  def replicate(self, array):
    """A tensor that every rank has whole."""
    return self.shard(array, ("R",) * len(self.shape), tuple(array.shape))


def _run(kind, operands, mesh, **options):
  made = tuple(None if one is None else one._made for one in operands)
  first, second, strategy = _core.shard_run(kind, made, **{k: v for k, v in options.items() if v is not None})
  results = [Tensor(one, mesh) for one in (first, second) if one is not None]
  for result in results:
    result.strategy = strategy
  return results[0] if len(results) == 1 else tuple(results)


def _form(offsets, include_last_offset):
  return "matrix" if offsets is None else "offsets_end" if include_last_offset else "offsets"


def embedding(input, weight, padding_idx=None, *, out=None, padding="zero", bad_index="error"):
  """sheaf.embedding over tensors of a mesh. out: where the result shall lie. Collective."""
  return _run("lookup", (weight, input), weight.mesh, out=out, padding_idx=padding_idx, padding=padding,
              bad_index=bad_index)


def embedding_backward(grad_out, input, num_weights, padding_idx=None, scale_grad_by_freq=False, *, out=None,
                       bad_index="error"):
  """The gradient of embedding's table. Collective."""
  return _run("lookup_backward", (None, input, None, None, grad_out), grad_out.mesh, out=out, padding_idx=padding_idx,
              scale_grad_by_freq=scale_grad_by_freq, rows=num_weights, bad_index=bad_index)


def embedding_bag(input, weight, offsets=None, mode="mean", per_sample_weights=None, include_last_offset=False,
                  padding_idx=None, *, out=None, return_arg=False, bad_index="error"):
  """sheaf.embedding_bag over tensors of a mesh. Collective."""
  return _run(f"bag_{mode}", (weight, input, offsets, per_sample_weights), weight.mesh, out=out,
              padding_idx=padding_idx, bag_form=_form(offsets, include_last_offset), bad_index=bad_index,
              wanted=3 if return_arg else 1)


def embedding_bag_backward(grad_out, input, num_weights, offsets=None, mode="mean", per_sample_weights=None,
                           include_last_offset=False, padding_idx=None, scale_grad_by_freq=False, *, weight=None,
                           forward=None, arg=None, out=None, bad_index="error"):
  """The gradient of embedding_bag's table; with per_sample_weights and weight also the weights'. Collective."""
  both = per_sample_weights is not None and weight is not None
  return _run(f"bag_{mode}_backward", (weight, input, offsets, per_sample_weights, grad_out, arg, forward),
              grad_out.mesh, out=out, padding_idx=padding_idx, bag_form=_form(offsets, include_last_offset),
              scale_grad_by_freq=scale_grad_by_freq, rows=num_weights, bad_index=bad_index, wanted=3 if both else 1)


def segment_reduce(reduce, data, segment_ids, num_segments, *, unsorted=False, out=None, return_arg=False,
                   empty="neutral", bad_index="error"):
  """segment_sum ("sum"), mean, max, min or prod over tensors of a mesh. Collective."""
  return _run(f"{'unsorted_' if unsorted else ''}segment_{reduce}", (data, segment_ids), data.mesh, out=out,
              rows=num_segments, empty=empty, bad_index=bad_index, wanted=3 if return_arg else 1)


def segment_reduce_backward(reduce, grad_out, segment_ids, *, data=None, arg=None, unsorted=False, out=None,
                            ties="first", bad_index="error"):
  """The gradient of segment_reduce's data. Collective."""
  return _run(f"{'unsorted_' if unsorted else ''}segment_{reduce}_backward", (data, segment_ids, grad_out, arg),
              grad_out.mesh, out=out, rows=grad_out.shape[0], ties=ties, bad_index=bad_index)
