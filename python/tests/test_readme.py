"""The README's Python lines, run as they stand: on NumPy alone up to the import of PyTorch, and all of them."""
import pathlib
import re

import numpy as np
import pytest

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.search(r"```python\n(.*?)```\n\nprints `([^`]*)`", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_lines_on_numpy():
  names = {}
  exec(BLOCK.group(1).partition("import torch")[0], names)  # pylint: disable=exec-used
  table, bags = names["table"], names["bags"]
  assert np.allclose(names["sums"], table[bags].sum(1), atol=1e-5)
  assert np.allclose(names["grad"][9], names["sums"][1])
  assert np.allclose(names["means"], [(table[2] + table[7]) / 2, table[7]], atol=1e-6)
  assert np.allclose(names["close"], names["sums"], atol=0.1)


def test_all_lines_print_what_they_say(capsys):
  pytest.importorskip("torch", reason="PyTorch is not installed here")
  exec(BLOCK.group(1), {})  # pylint: disable=exec-used
  assert capsys.readouterr().out.strip() == BLOCK.group(2)
