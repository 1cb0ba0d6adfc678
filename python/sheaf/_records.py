"""Profiles and traces of calls, and autocast, as context managers."""
import os
import typing

from sheaf import _core


class profile:
  """Records every call of every thread: what, on what shapes, by which kernel, how many bytes, how long.

    with sheaf.profile() as p:
      ...
    print(p.table)
    p.save("calls.json")   # opens in Perfetto
  """

  records: list[dict[str, typing.Any]] = []
  table: str = ""
  chrome: str = ""

  def __enter__(self) -> typing.Self:
    _core.profiler_begin()
    return self

  def __exit__(self, *error: object) -> None:
    self.records, self.table, self.chrome = _core.profiler_end()

  def save(self, path: str | os.PathLike) -> None:
    """Writes the calls as a Chrome trace."""
    _write(path, self.chrome)


class trace:
  """Records the calls of this thread as a graph, which prints (`text`, `dot`, `json`) and runs again on other arrays
  (`replay`). Results of calls that are inputs of later ones are joined; all other arrays are inputs of the graph, in
  the order of their first use.

    with sheaf.trace() as t:
      ...
    print(t.graph.text)
  """

  graph: _core.Trace | None = None

  def __enter__(self) -> typing.Self:
    _core.tracer_begin()
    return self

  def __exit__(self, *error: object) -> None:
    self.graph = _core.tracer_end()

  def replay(self, *inputs: typing.Any) -> list[typing.Any]:
    if self.graph is None:
      raise ValueError("the trace is still being taken, or was not begun")
    return self.graph.replay(*inputs)

  @staticmethod
  def from_json(text: str) -> "trace":
    """A graph again from its JSON."""
    made = trace()
    made.graph = _core.trace_from_json(text)
    return made


class autocast:
  """Within it, on this thread, lookups and bags compute on tables (and weights) cast to f16 or bf16, and give that
  type; quantised tables give it too. Sums are kept in f32 as ever; f64, segments and gradients are left alone.
  enabled=False turns an outer one off.

    with sheaf.autocast("bf16"):
      out = sheaf.embedding_bag(indices, table)

  A table is cast once in a region: what is written into it meanwhile is not seen before the region ends.
  """

  def __init__(self, dtype: str = "bf16", enabled: bool = True):
    self.dtype = dtype if enabled else None

  def __enter__(self) -> typing.Self:
    _core.autocast_begin(self.dtype)
    return self

  def __exit__(self, *error: object) -> None:
    _core.autocast_end()


def _write(path, text):
  with open(os.fspath(path), "w", encoding="utf-8") as file:
    file.write(text)
