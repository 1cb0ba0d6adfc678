"""sheaf.jax beside JAX's own indexing and segments, on the CPU: jit, gradients, errors."""
import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed here")
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp

import sheaf
import sheaf.jax

TABLE = jnp.asarray(np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32))
INDEX = jnp.asarray([[1, 2, 19], [3, 1, 1]])
IDS, DATA = jnp.asarray([0, 0, 1, 3, 3, 3]), TABLE[:6]


def same(ours, theirs, *arguments):
  """Values and gradients of two functions, compiled."""
  assert jnp.allclose(jax.jit(ours)(*arguments), theirs(*arguments), atol=1e-5)
  places = tuple(range(len(arguments)))
  mine = jax.jit(jax.grad(lambda *a: (ours(*a)**2).sum(), places))(*arguments)
  for got, expected in zip(mine, jax.grad(lambda *a: (theirs(*a)**2).sum(), places)(*arguments)):
    assert jnp.allclose(got, expected, atol=1e-4)


def test_lookups():
  same(lambda w: sheaf.jax.embedding(INDEX, w), lambda w: w[INDEX], TABLE)
  padded = lambda w: jnp.where((INDEX == 1)[..., None], 0, w[INDEX])
  same(lambda w: sheaf.jax.embedding(INDEX, w, 1), padded, TABLE)


@pytest.mark.parametrize("mode, reduce", [("sum", jnp.sum), ("mean", jnp.mean), ("max", jnp.max)])
def test_bags(mode, reduce):
  same(lambda w: sheaf.jax.embedding_bag(INDEX[:, :2], w, mode=mode), lambda w: reduce(w[INDEX[:, :2]], axis=1), TABLE)
  offsets = jnp.asarray([0, 4])
  same(lambda w: sheaf.jax.embedding_bag(INDEX.ravel()[:5], w, offsets, mode=mode),
       lambda w: jnp.stack([reduce(w[INDEX.ravel()[:4]], axis=0), w[INDEX.ravel()[4]]]), TABLE[::-1] * 3 + 0.01)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_weighted_bags(mode):
  def plain(w, s):
    total = (w[INDEX] * s[..., None]).sum(1)
    return total / s.sum(1, keepdims=True) if mode == "mean" else total

  same(lambda w, s: sheaf.jax.embedding_bag(INDEX, w, mode=mode, per_sample_weights=s), plain, TABLE,
       jnp.asarray([[0.5, 1, 2], [1, 2, 0.25]]))


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("order", [slice(None), np.array([3, 0, 5, 2, 1, 4])])
def test_segments(kind, order):
  name = ("segment_" if isinstance(order, slice) else "unsorted_segment_") + kind

  def plain(x):
    out = getattr(jax.ops, f"segment_{kind}")(x, IDS[order], 4)
    return jnp.where(jnp.isfinite(out), out, 0)

  same(lambda x: getattr(sheaf.jax, name)(x, IDS[order], 4), plain, DATA[order])


def test_segment_mean_and_prod():
  same(lambda x: sheaf.jax.segment_mean(x, IDS, 4),
       lambda x: jnp.stack([x[:2].mean(0), x[2], jnp.zeros(4), x[3:].mean(0)]), DATA)
  same(lambda x: sheaf.jax.segment_prod(x, IDS, 4),
       lambda x: jnp.stack([x[:2].prod(0), x[2], jnp.ones(4), x[3:].prod(0)]), DATA)


def test_vmap():
  tables = jnp.stack([TABLE, TABLE * 2])
  assert jnp.array_equal(jax.vmap(lambda i: sheaf.jax.embedding(i, TABLE))(INDEX), TABLE[INDEX])
  assert jnp.allclose(jax.vmap(lambda w: sheaf.jax.embedding_bag(INDEX, w, mode="sum"))(tables),
                      tables[:, INDEX].sum(2), atol=1e-5)


def test_the_package_itself_takes_jax_arrays():
  out = sheaf.embedding(INDEX, TABLE)
  assert isinstance(out, jax.Array) and jnp.array_equal(out, TABLE[INDEX])
  assert sheaf.embedding(INDEX, TABLE.astype(jnp.bfloat16)).dtype == jnp.bfloat16
  given = np.empty((2, 3, 4), np.float32)
  assert sheaf.embedding(INDEX, TABLE, out=given) is given and np.array_equal(given, TABLE[INDEX])
  with pytest.raises(ValueError, match="read-only"):
    sheaf.embedding(INDEX, TABLE, out=jnp.zeros((2, 3, 4)))


def test_words_of_an_error_come_through():
  with pytest.raises(Exception, match="20 at position 0 is outside 0..19"):
    sheaf.jax.embedding(jnp.asarray([20]), TABLE).block_until_ready()
