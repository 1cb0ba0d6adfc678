"""Tables of packed int8 and int4 rows."""
import typing

import numpy

from sheaf import _core


class QuantizedTable:
  """A table [rows, dim] whose rows are packed as int8 or int4, each with its own scale and bias. embedding and
  embedding_bag take it as their weight."""

  __slots__ = ("packed", "dtype", "dim")

  def __init__(self, packed: typing.Any, dtype: str, dim: int):
    """packed: uint8 [rows, bytes of a packed row]; dtype: "int8" or "int4"."""
    if dtype not in ("int8", "int4"):
      raise ValueError(f"dtype is {dtype!r}; rows are packed as 'int8' or 'int4'")
    needed = dim + 8 if dtype == "int8" else (dim + 1) // 2 + 4
    if len(packed.shape) != 2 or packed.shape[1] != needed:
      raise ValueError(f"packed has shape {tuple(packed.shape)}; rows of {dim} elements take {needed} bytes as {dtype}")
    self.packed, self.dtype, self.dim = packed, dtype, dim

  @property
  def shape(self) -> tuple[int, int]:
    return (self.packed.shape[0], self.dim)

  def dequantize(self, dtype: str = "f32") -> typing.Any:
    """The rows as f32, f64, f16 or bf16."""
    return _core.dequantize_rows(self, dtype)

  def __repr__(self):
    return f"QuantizedTable({self.dtype}, {self.shape[0]} rows of {self.dim})"


_core.set_quantized_type(QuantizedTable)


def quantize(rows: typing.Any, dtype: str = "int8") -> QuantizedTable:
  """Packs rows [V, D] as int8 or int4: a QuantizedTable. A row with a NaN or an infinity, or that
  ranges further than scale and bias can hold, is a ValueError."""
  if dtype not in ("int8", "int4"):
    raise ValueError(f"dtype is {dtype!r}; rows are packed as 'int8' or 'int4'")
  packed = _core.quantize_rows(rows, dtype)
  tail = numpy.asarray(packed)[:, -8 if dtype == "int8" else -4:]
  tail = numpy.ascontiguousarray(tail).view("<f4" if dtype == "int8" else "<f2")
  fits = numpy.isfinite(tail).all(axis=1)
  if not fits.all():
    raise ValueError(f"row {int(numpy.argmin(fits))} ranges further than {dtype} rows can hold")
  return QuantizedTable(packed, dtype, int(numpy.shape(rows)[1]))


def dequantize(table: QuantizedTable, dtype: str = "f32") -> typing.Any:
  """The rows of a QuantizedTable as f32, f64, f16 or bf16."""
  return _core.dequantize_rows(table, dtype)
