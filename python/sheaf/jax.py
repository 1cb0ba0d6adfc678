"""embedding, embedding_bag and segment reductions inside JAX programs on the CPU, with gradients.

  import sheaf.jax
  loss = jax.jit(lambda table: sheaf.jax.embedding_bag(indices, table, mode="sum").sum())
  jax.grad(loss)(table)

Calls leave the compiled program (jax.pure_callback) and come back with the result; gradients of tables and data are
Sheaf's own. The rules are those of the functions of the same names in sheaf. An exception of Sheaf's, a bad index say,
arrives as JAX's own runtime error with Sheaf's words in it.
"""
import functools

import jax
import jax.numpy as jnp
import numpy

from sheaf import _core

__all__ = ["embedding", "embedding_bag", "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum",
           "unsorted_segment_max", "unsorted_segment_mean", "unsorted_segment_min", "unsorted_segment_prod",
           "unsorted_segment_sum"]


def _call(function, shapes, *arrays):
  """A function of NumPy arrays (None stays None) as part of a JAX program."""

  def on_host(*values):
    values = iter(values)
    return function(*(None if array is None else numpy.asarray(next(values)) for array in arrays))

  return jax.pure_callback(on_host, shapes, *(a for a in arrays if a is not None), vmap_method="sequential")


def _like(array, shape, dtype=None):
  return jax.ShapeDtypeStruct(shape, dtype or array.dtype)


# ---- Lookup ----------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _embedding(weight, indices, padding_idx, scale_grad_by_freq, padding):
  return _call(lambda w, i: _core.embedding(i, w, padding_idx, padding=padding),
               _like(weight, indices.shape + weight.shape[1:]), weight, indices)


def _embedding_forward(weight, indices, padding_idx, scale_grad_by_freq, padding):
  return _embedding(weight, indices, padding_idx, scale_grad_by_freq, padding), (indices, weight.shape[0])


def _embedding_backward(padding_idx, scale_grad_by_freq, padding, saved, grad):
  indices, rows = saved
  weight_grad = _call(lambda g, i: _core.embedding_backward(g, i, rows, padding_idx, scale_grad_by_freq),
                      _like(grad, (rows, grad.shape[-1])), grad, indices)
  return weight_grad, None


_embedding.defvjp(_embedding_forward, _embedding_backward)


def embedding(input, weight, padding_idx=None, scale_grad_by_freq=False, *, padding="zero"):
  """sheaf.embedding."""
  return _embedding(jnp.asarray(weight), jnp.asarray(input), padding_idx, scale_grad_by_freq, padding)


# ---- Bags ------------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _bag(weight, indices, offsets, weights, mode, include_last_offset, padding_idx, scale_grad_by_freq):
  return _bag_forward(weight, indices, offsets, weights, mode, include_last_offset, padding_idx, scale_grad_by_freq)[0]


def _bag_forward(weight, indices, offsets, weights, mode, include_last_offset, padding_idx, scale_grad_by_freq):
  bags = indices.shape[0] if offsets is None else offsets.shape[0] - int(include_last_offset)
  shape = (bags, weight.shape[1])
  shapes = (_like(weight, shape), _like(indices, shape)) if mode == "max" else _like(weight, shape)

  def run(w, i, o, p):
    return _core.embedding_bag(i, w, o, mode, p, include_last_offset, padding_idx, return_arg=mode == "max")

  out = _call(run, shapes, weight, indices, offsets, weights)
  out, arg = out if mode == "max" else (out, None)
  table = weight if weights is not None else None
  return out, (indices, offsets, weights, arg, table, out if weights is not None else None, weight.shape[0])


def _bag_backward(mode, include_last_offset, padding_idx, scale_grad_by_freq, saved, grad):
  indices, offsets, weights, arg, table, out, rows = saved

  def run(g, i, o, p, a, w, f):
    return _core.embedding_bag_backward(g, i, rows, o, mode, p, include_last_offset, padding_idx, scale_grad_by_freq,
                                        arg=a, weight=w, forward=f)

  shape = _like(grad, (rows, grad.shape[1]))
  shapes = shape if weights is None else (shape, _like(weights, weights.shape))
  grads = _call(run, shapes, grad, indices, offsets, weights, arg, table, out)
  weight_grad, weights_grad = (grads, None) if weights is None else grads
  return weight_grad, None, None, weights_grad


_bag.defvjp(_bag_forward, _bag_backward)


def embedding_bag(input, weight, offsets=None, mode="mean", per_sample_weights=None, include_last_offset=False,
                  padding_idx=None, scale_grad_by_freq=False):
  """sheaf.embedding_bag."""
  offsets = None if offsets is None else jnp.asarray(offsets)
  weights = None if per_sample_weights is None else jnp.asarray(per_sample_weights)
  return _bag(jnp.asarray(weight), jnp.asarray(input), offsets, weights, mode, include_last_offset, padding_idx,
              scale_grad_by_freq)


# ---- Segments --------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _segments(data, ids, num_segments, kind, empty, ties):
  return _call(lambda x, i: getattr(_core, kind)(x, i, num_segments, empty=empty),
               _like(data, (num_segments,) + data.shape[1:]), data, ids)


def _segments_forward(data, ids, num_segments, kind, empty, ties):
  kept = None if kind.endswith(("sum", "mean")) else data
  return _segments(data, ids, num_segments, kind, empty, ties), (ids, kept)


def _segments_backward(num_segments, kind, empty, ties, saved, grad):
  ids, data = saved
  data_grad = _call(lambda g, i, x: getattr(_core, kind + "_backward")(g, i, data=x, ties=ties),
                    _like(grad, ids.shape + grad.shape[1:]), grad, ids, data)
  return data_grad, None


_segments.defvjp(_segments_forward, _segments_backward)


def _segment_function(kind):
  def reduce(data, segment_ids, num_segments, *, empty="neutral", ties="first"):
    return _segments(jnp.asarray(data), jnp.asarray(segment_ids), num_segments, kind, empty, ties)

  reduce.__name__ = reduce.__qualname__ = kind
  reduce.__doc__ = f"sheaf.{kind}."
  return reduce


segment_sum = _segment_function("segment_sum")
segment_mean = _segment_function("segment_mean")
segment_max = _segment_function("segment_max")
segment_min = _segment_function("segment_min")
segment_prod = _segment_function("segment_prod")
unsorted_segment_sum = _segment_function("unsorted_segment_sum")
unsorted_segment_mean = _segment_function("unsorted_segment_mean")
unsorted_segment_max = _segment_function("unsorted_segment_max")
unsorted_segment_min = _segment_function("unsorted_segment_min")
unsorted_segment_prod = _segment_function("unsorted_segment_prod")
