"""The least that a fresh environment with the wheel and NumPy must do; run with the interpreter of that environment."""
import sys

import numpy as np

import sheaf

assert not {"torch", "jax", "mpi4py"} & set(sys.modules), "frameworks are imported only when asked for"
table = np.arange(12, dtype=np.float32).reshape(4, 3)
index = np.array([3, 0, 3])
assert np.array_equal(sheaf.embedding(index, table), table[index])
assert np.array_equal(sheaf.embedding_bag(index, table, [0, 1], "sum"), [table[3], table[0] + table[3]])
assert np.array_equal(sheaf.embedding_backward(np.ones((3, 3), np.float32), index, 4)[:, 0], [1, 0, 0, 2])
assert np.array_equal(sheaf.segment_max(table, [0, 0, 2, 2], 3), [table[1], table[1] * 0, table[3]])
table.flags.writeable = False
assert sheaf.embedding([[1]], table).shape == (1, 1, 3)
assert sheaf.embedding_bag([[1, 2]], sheaf.quantize(table, "int8")).dtype == np.float32
try:
  sheaf.embedding([4], table)
except IndexError as error:
  assert error.position == 0 and error.value == 4
else:
  raise AssertionError("a bad index went unnoticed")
print(f"CPython {sys.version.split()[0]}, NumPy {np.__version__}: Sheaf {sheaf.__version__} works")
