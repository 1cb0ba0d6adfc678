"""What only an array's own framework can do: copies that lie contiguously, empty arrays of its kind, arrays around
memory of Sheaf's. Asked by the extension; NumPy's and PyTorch's common cases never come here.
"""
import sys

import numpy

_NAMES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "i64": "int64",
          "u8": "uint8"}


_FRAMEWORKS = {"numpy": "numpy", "torch": "torch", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"}


def framework(array):
  """The framework that an array's type, or one that it is derived from, belongs to; None for others."""
  roots = (kind.__module__.partition(".")[0] for kind in type(array).__mro__)
  return next((_FRAMEWORKS[root] for root in roots if root in _FRAMEWORKS), None)


def has_bfloat16():
  """Whether NumPy has a bfloat16 here."""
  try:
    import ml_dtypes  # noqa: F401
  except ImportError:
    return False
  return True


def numpy_dtype(name):
  """NumPy's type of a name of Sheaf's; bfloat16 is that of ml_dtypes."""
  if name != "bf16":
    return numpy.dtype(_NAMES[name])
  if not has_bfloat16():
    raise TypeError("bfloat16 in NumPy needs the package ml_dtypes")
  import ml_dtypes
  return numpy.dtype(ml_dtypes.bfloat16)


def bits(array):
  """The bits of a NumPy array of bfloat16, which the buffer protocol has no format for."""
  dtype = getattr(array, "dtype", None)
  if getattr(dtype, "name", None) != "bfloat16":
    raise TypeError(f"an array of {dtype if dtype is not None else type(array).__name__} has no buffer to be read")
  return array.view(numpy.uint16)


def contiguous(array):
  """A copy that lies row by row, aligned to its elements."""
  kind = framework(array)
  if kind == "torch":
    return array.clone(memory_format=sys.modules["torch"].contiguous_format)
  if kind == "cupy":
    return sys.modules["cupy"].array(array, order="C")
  if hasattr(array, "__dlpack__") and not isinstance(array, numpy.ndarray):
    array = numpy.from_dlpack(array)
  return numpy.array(array, order="C", copy=True)


def as_array(values, dtype=None):
  """Lists, tuples and numbers as an array. `dtype` is the type of what says nothing of its own: of an empty list, and,
  where it is no index, of any numbers."""
  array = numpy.asarray(values)
  if array.dtype == object:
    raise TypeError(f"{type(values).__name__} is no array of numbers")
  if dtype is not None and (array.size == 0 or (dtype != "i64" and array.dtype.kind in "biuf")):
    array = array.astype(numpy_dtype(dtype))
  return array


def stream(array):
  """The CUDA stream on which an array's framework works now, as a number; None when it does not say."""
  kind = framework(array)
  if kind == "torch":
    return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
  if kind == "cupy":
    return sys.modules["cupy"].cuda.get_current_stream(array.device.id).ptr
  return None


def empty(like, dtype, shape):
  """An array to be written, on the device of `like` and of its kind where that can be."""
  kind = framework(like)
  if kind == "torch":
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, _NAMES[dtype]), device=like.device)
  if kind == "cupy":
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(like.device.id):
      return cupy.empty(shape, _NAMES[dtype])
  if kind == "jax" and like.device.platform != "cpu":  # never to be written but now, while nobody else knows of it
    return sys.modules["jax"].numpy.empty(shape, _NAMES[dtype], device=like.device)
  return numpy.empty(shape, numpy_dtype(dtype))


def written(array):
  """Counts up the version of a tensor that was written, so that a graph which holds it notices."""
  if framework(array) == "torch":
    sys.modules["torch"].autograd.graph.increment_version(array)


def is_frozen(array):
  """Whether an array must not be written, though DLPack may not say so."""
  return framework(array) == "jax"


def finish(like, made):
  """What the caller gets for an array that `empty` made."""
  if framework(like) == "jax" and framework(made) == "numpy":
    return sys.modules["jax"].numpy.asarray(made)
  return made


def adopt(like, memory):
  """An array of the kind of `like` around memory of Sheaf's."""
  kind = framework(like)
  if kind == "torch":
    return sys.modules["torch"].from_dlpack(memory)
  if kind == "cupy":
    return sys.modules["cupy"].from_dlpack(memory)
  return finish(like, to_numpy(memory))


def to_numpy(memory):
  """A NumPy array around memory of Sheaf's."""
  array = numpy.asarray(memory)
  return array.view(numpy_dtype("bf16")) if memory.dtype == "bf16" else array
