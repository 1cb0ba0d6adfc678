"""bench/peers/ceiling.py: the ceilings of `sheaf bench` (cli/bench_stream.c, as a shared library) for Python."""
import ctypes as c
import statistics
import time

KINDS = {"read": 0, "copy": 1, "fill": 2, "gather": 3, "update": 4}


class Job(c.Structure):
  _fields_ = [("kind", c.c_int), ("threads", c.c_int), ("memory", c.c_void_p), ("target", c.c_void_p),
              ("bytes", c.c_int64), ("row_bytes", c.c_int64), ("stride", c.c_int64), ("indices", c.c_void_p),
              ("count", c.c_int64)]


class Ceiling:
  """One kind of memory traffic. choose() finds the fastest ways; run() then takes the best of them."""

  TRIALS, FINALISTS, KEPT = 3, 6, 2

  def __init__(self, path, kind, threads, memory, row_bytes=0, target=0, size=0):
    self.library = c.CDLL(path)
    self.library.stream_run.restype = c.c_int64
    self.library.stream_run.argtypes = [c.POINTER(Job), c.c_int]
    self.job = Job(KINDS[kind], threads, memory, target, size, row_bytes, row_bytes, None, 0)
    self.ways = list(range(self.library.stream_variants(KINDS[kind])))

  def point(self, indices):
    """Rows to visit: a torch tensor of int64."""
    self.job.indices, self.job.count = indices.data_ptr(), indices.numel()

  def rate(self, way):
    start = time.perf_counter()
    moved = self.library.stream_run(c.byref(self.job), way)
    return moved / (time.perf_counter() - start) / 1e9

  def choose(self, index_sets=(None,)):
    rates = {way: [] for way in self.ways}
    for kept, score in ((self.FINALISTS, max), (self.KEPT, statistics.median)):  # among many ways one is bound to be lucky
      for _ in range(self.TRIALS):
        for way in self.ways:
          if index_sets[0] is not None:
            self.point(index_sets[(len(rates[way]) + way) % len(index_sets)])
          rates[way].append(self.rate(way))
      self.ways = sorted(self.ways, key=lambda way: score(rates[way]), reverse=True)[:kept]

  def run(self):
    """GB/s of each of the kept ways."""
    return [self.rate(way) for way in self.ways]
