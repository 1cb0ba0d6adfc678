"""Run by test_ranks.py on several ranks under mpirun: tables spread over them, compared with one that is whole."""
import sys

import numpy as np
from mpi4py import MPI

import sheaf

comm = MPI.COMM_WORLD
random = np.random.default_rng(7)  # the same everywhere
rows, dim = 37, 6
table = random.standard_normal((rows, dim)).astype(np.float32)
index = random.integers(0, rows, (11, 5))
grad = random.standard_normal((11, dim)).astype(np.float32)

mesh = sheaf.shard.Mesh(comm.size, comm)
assert mesh.rank == comm.rank and mesh.shape == (comm.size,)


def part(array, placement):
  shape, begin = mesh.local_shape(array.shape, placement)
  mine = array[tuple(slice(b, b + s) for b, s in zip(begin, shape))]
  return mesh.shard(np.ascontiguousarray(mine), placement, array.shape)


for placement in ("R", "S(0)", "S(1)"):
  spread, whole = part(table, placement), mesh.replicate(index)
  out = sheaf.shard.embedding(whole, spread, out="R")
  assert np.array_equal(out.local, table[index]), placement
  for mode in ("sum", "mean", "max"):
    bags = sheaf.shard.embedding_bag(whole, spread, mode=mode, out="R")
    assert np.allclose(bags.local, sheaf.embedding_bag(index, table, mode=mode), atol=1e-5), (placement, mode)
  back = sheaf.shard.embedding_bag_backward(mesh.replicate(grad), whole, rows, mode="sum", out=placement)
  expected = sheaf.embedding_bag_backward(grad, index, rows, mode="sum")
  assert back.placements == (placement,)
  assert np.allclose(back.redistribute("R").local, expected, atol=1e-5), placement

ids = np.sort(random.integers(0, 4, rows))
sums = sheaf.shard.segment_reduce("sum", part(table, "S(0)"), part(ids, "S(0)"), 4, out="R")
assert np.allclose(sums.local, sheaf.segment_sum(table, ids, 4), atol=1e-5)

# One rank's bad index is every rank's error, with the rank's name in it.
bad = index.copy()
if comm.rank == comm.size - 1:
  bad[0, 0] = rows
try:
  sheaf.shard.embedding(part(bad, "S(0)") if comm.size == 1 else mesh.shard(bad, "R", bad.shape), part(table, "S(0)"))
except IndexError as error:
  assert f"{rows} at position 0" in str(error), error
else:
  raise AssertionError("a bad index went unnoticed")
assert comm.size == 1 or mesh.statistics["bytes_sent"] > 0
sys.stdout.write(f"rank {comm.rank} of {comm.size}: all agree\n")
