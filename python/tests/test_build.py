"""What the package's build refuses, and what its wheel says of itself."""
import importlib.metadata
import pathlib
import shutil
import subprocess

import pytest

import sheaf

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_libraries_of_another_tree_are_not_packed(tmp_path):
  if not shutil.which("cmake"):
    pytest.skip("cmake is not here")
  for cache, home in (("", "''"), ("CMAKE_HOME_DIRECTORY:INTERNAL=/else\n", "'/else'")):
    (tmp_path / "CMakeCache.txt").write_text(cache)
    result = subprocess.run(["cmake", "-S", ROOT / "python", "-B", tmp_path / "b", f"-DSHEAF_PREBUILT={tmp_path}"],
                            check=False, capture_output=True, text=True)
    assert result.returncode != 0 and f"a build folder of {home}" in " ".join(result.stderr.split())


def test_the_wheel():
  files = {str(file) for file in importlib.metadata.files("sheaf")}
  assert {"sheaf/_core.abi3.so", "sheaf/libsheaf.so.0.1", "sheaf/_core.pyi", "sheaf/py.typed"} <= files
  about = importlib.metadata.metadata("sheaf")
  assert about["Version"] == sheaf.__version__ and about["Requires-Python"] == ">=3.11"
  needed = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
  assert needed == ["numpy>=1.26"]
