"""Tables in files: safetensors and npy, read by mapping the file into memory, written atomically."""
import os
import typing

from sheaf import _core, _kinds
from sheaf._quantized import QuantizedTable


class Tensors(dict[str, typing.Any]):
  """Arrays by name, as a safetensors file has them; `metadata` is the file's."""

  metadata: dict[str, str]


def load(path: str | bytes | os.PathLike, name: str | None = None) -> typing.Any:
  """Maps a file: an array of an npy file, the arrays by name of a safetensors file (or the one called `name`, which may
  also be written behind the path: "model.safetensors:wte.weight").

  Nothing is read before it is used; arrays are read-only and keep the file mapped. Tables that `sheaf quantize` or save
  packed are QuantizedTables. Types that Sheaf has no name for are left out. bfloat16 needs the package ml_dtypes;
  without it such a tensor is a Memory, for frameworks to take by DLPack.
  """
  if name is None:
    path, name = _split(path)
  if _is_npy(path):
    if name is not None:
      raise ValueError(f"{os.fspath(path)!r} is an npy file, whose array has no name; {name!r} was asked for")
    return _array(_core.read_npy(path))
  memories, metadata = _core.read_safetensors(path)
  memories = {key: memory for key, memory in memories.items() if memory is not None}
  if name is None:
    tensors = Tensors((key, _table(key, memory, metadata)) for key, memory in memories.items())
    tensors.metadata = metadata
    return tensors
  if name not in memories:
    raise KeyError(f"{name!r} is not in {os.fspath(path)!r}, which holds {', '.join(sorted(memories)) or 'nothing'}")
  return _table(name, memories[name], metadata)


def save(path: str | bytes | os.PathLike, tensors: typing.Any, metadata: dict[str, str] | None = None) -> None:
  """Writes an array to an npy file, or arrays and QuantizedTables by name (with metadata, strings by name) to a
  safetensors file. What was there before is replaced at once, when all is written."""
  if _is_npy(path):
    if metadata:
      raise ValueError("an npy file has no room for metadata")
    if isinstance(tensors, QuantizedTable):
      raise ValueError("an npy file has no room to say how rows are packed; a safetensors file has")
    _core.write_file(path, {"": tensors}, {}, True)
  elif not isinstance(tensors, dict):
    raise TypeError(f"a safetensors file holds arrays by name, a dict; {type(tensors).__name__} was given")
  else:
    tensors, metadata = dict(tensors), dict(metadata or {})
    for text in (*tensors, *metadata, *metadata.values()):
      if not isinstance(text, str):
        raise TypeError(f"names and metadata are strings; {text!r} is of type {type(text).__name__}")
      if "\0" in text:
        raise ValueError(f"{text!r} holds a NUL, which names and metadata of a safetensors file cannot have here")
    for key, value in tensors.items():
      if isinstance(value, QuantizedTable):
        tensors[key], metadata[_NOTE + key] = value.packed, f"{value.dtype} {value.dim}"
      elif str(getattr(value, "dtype", "")) not in ("uint8", "torch.uint8"):
        metadata.pop(_NOTE + key, None)  # of what was there before
    _core.write_file(path, tensors, metadata, False)


# Before a tensor's name, this is the key of metadata that says what its bytes are, as "int4 768" (`sheaf quantize`).
_NOTE = "sheaf.quantized."


def _table(name, memory, metadata):
  note = metadata.get(_NOTE + name)
  if note is None or memory.dtype != "u8":  # what is not bytes is no packed table, whatever a copied note says
    return _array(memory)
  dtype, _, dim = note.partition(" ")
  if dtype not in ("int8", "int4") or not dim.isascii() or not dim.isdigit():
    raise ValueError(f"the note of {name!r}, {note!r}, is neither 'int8 COLUMNS' nor 'int4 COLUMNS'")
  return QuantizedTable(_array(memory), dtype, int(dim))


def _split(path):
  """FILE:TENSOR as (FILE, TENSOR), split at the first colon before which there is a file; a file as it is, and None."""
  text = os.fspath(path)
  colon = b":" if isinstance(text, bytes) else ":"
  if os.path.exists(text):
    return path, None
  at = text.find(colon)
  while at >= 0:
    if os.path.exists(text[:at]):
      return text[:at], os.fsdecode(text[at + 1:])
    at = text.find(colon, at + 1)
  return path, None


def _array(memory):
  return _kinds.to_numpy(memory) if memory.dtype != "bf16" or _kinds.has_bfloat16() else memory


def _is_npy(path):
  path = os.fspath(path)
  return path.endswith(b".npy" if isinstance(path, bytes) else ".npy")
