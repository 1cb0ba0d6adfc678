"""Profiles and traces of calls, as context managers."""
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


def _write(path, text):
  with open(os.fspath(path), "w", encoding="utf-8") as file:
    file.write(text)
