"""Profiles and traces of calls, and autocast, as context managers."""
import os

from sheaf import _core


class profile:
  """Records every call of every thread: what, on what shapes, by which kernel, how many bytes, how long.

    with sheaf.profile() as p:
      ...
    print(p.table)
    p.save("calls.json")   # opens in Perfetto
  """

  records, table, chrome = [], "", ""

  def __enter__(self):
    _core.profiler_begin()
    return self

  def __exit__(self, *error):
    self.records, self.table, self.chrome = _core.profiler_end()

  def save(self, path):
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

  graph = None

  def __enter__(self):
    _core.tracer_begin()
    return self

  def __exit__(self, *error):
    self.graph = _core.tracer_end()

  def replay(self, *inputs):
    return self.graph.replay(*inputs)

  @staticmethod
  def from_json(text):
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

  def __init__(self, dtype="bf16", enabled=True):
    self.dtype = dtype if enabled else None

  def __enter__(self):
    _core.autocast_begin(self.dtype)
    return self

  def __exit__(self, *error):
    _core.autocast_end()


def _write(path, text):
  with open(os.fspath(path), "w", encoding="utf-8") as file:
    file.write(text)
