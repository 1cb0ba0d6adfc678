"""Tables in files: safetensors and npy, read by mapping the file into memory, written atomically."""
import os
import typing

from sheaf import _core, _kinds


class Tensors(dict[str, typing.Any]):
  """Arrays by name, as a safetensors file has them; `metadata` is the file's."""

  metadata: dict[str, str]


def load(path: str | bytes | os.PathLike, name: str | None = None) -> typing.Any:
  """Maps a file: an array of an npy file, the arrays by name of a safetensors file (or the one called `name`).

  Nothing is read before it is used; arrays are read-only and keep the file mapped. Types that Sheaf has no name for are
  left out. bfloat16 needs the package ml_dtypes; without it such a tensor is a Memory, for frameworks to take by
  DLPack.
  """
  if _is_npy(path):
    if name is not None:
      raise ValueError(f"{os.fspath(path)!r} is an npy file, whose array has no name; {name!r} was asked for")
    return _array(_core.read_npy(path))
  memories, metadata = _core.read_safetensors(path)
  tensors = Tensors((key, _array(memory)) for key, memory in memories.items() if memory is not None)
  tensors.metadata = metadata
  if name is None:
    return tensors
  if name not in tensors:
    raise KeyError(f"{name!r} is not in {os.fspath(path)!r}, which holds {', '.join(sorted(tensors)) or 'nothing'}")
  return tensors[name]


def save(path: str | bytes | os.PathLike, tensors: typing.Any, metadata: dict[str, str] | None = None) -> None:
  """Writes an array to an npy file, or arrays by name (with metadata, strings by name) to a safetensors file. What was
  there before is replaced at once, when all is written."""
  if _is_npy(path):
    if metadata:
      raise ValueError("an npy file has no room for metadata")
    _core.write_file(path, {"": tensors}, {}, True)
  elif not isinstance(tensors, dict):
    raise TypeError(f"a safetensors file holds arrays by name, a dict; {type(tensors).__name__} was given")
  else:
    tensors, metadata = dict(tensors), dict(metadata or {})
    for text in (*tensors, *metadata, *metadata.values()):
      if isinstance(text, str) and "\0" in text:
        raise ValueError(f"{text!r} holds a NUL, which names and metadata of a safetensors file cannot have here")
    _core.write_file(path, tensors, metadata, False)


def _array(memory):
  return _kinds.to_numpy(memory) if memory.dtype != "bf16" or _kinds.has_bfloat16() else memory


def _is_npy(path):
  path = os.fspath(path)
  return path.endswith(b".npy" if isinstance(path, bytes) else ".npy")
