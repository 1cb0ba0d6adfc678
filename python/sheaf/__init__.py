"""Embedding tables: lookup, embedding bags and segment reductions, forward and backward, on NumPy, PyTorch, JAX and
CuPy arrays.

  import numpy, sheaf
  table = numpy.random.rand(1000, 64).astype("float32")
  rows = sheaf.embedding(numpy.array([3, 1, 4]), table)
  bags = sheaf.embedding_bag(numpy.array([[3, 1], [4, 1]]), table, mode="sum")

Results are arrays of the caller's kind, and the same to the last bit on every machine and for any number of threads.
Functions here record no gradients; sheaf.torch and sheaf.jax do.
"""
from sheaf._core import (
  Plan,
  Trace,
  clear_caches,
  embedding,
  embedding_backward,
  embedding_bag,
  embedding_bag_backward,
  info,
  kernels,
  nearest,
  segment_max,
  segment_max_backward,
  segment_mean,
  segment_mean_backward,
  segment_min,
  segment_min_backward,
  segment_prod,
  segment_prod_backward,
  segment_sum,
  segment_sum_backward,
  set_isa,
  set_threads,
  unsorted_segment_max,
  unsorted_segment_max_backward,
  unsorted_segment_mean,
  unsorted_segment_mean_backward,
  unsorted_segment_min,
  unsorted_segment_min_backward,
  unsorted_segment_prod,
  unsorted_segment_prod_backward,
  unsorted_segment_sum,
  unsorted_segment_sum_backward,
)
from sheaf._files import load, save
from sheaf._quantized import QuantizedTable, dequantize, quantize
from sheaf._records import autocast, profile, trace
from sheaf import shard

__version__ = info()["version"]
__all__ = [name for name in dir() if not name.startswith("_")]
