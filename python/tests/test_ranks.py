"""Tables over ranks, under mpi4py: runs ranks_program.py with mpirun."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import sheaf

PROGRAM = pathlib.Path(__file__).with_name("ranks_program.py")


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_agree_with_one_table(ranks):
  if not shutil.which("mpirun") or not importlib.util.find_spec("mpi4py"):
    pytest.skip("mpirun or mpi4py is not here")
  if not (pathlib.Path(sheaf.__file__).parent / "libsheaf_mpi.so").exists():
    pytest.skip("this package was built without MPI")
  environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                     OMPI_MCA_btl_vader_single_copy_mechanism="none")
  result = subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, str(PROGRAM)], check=False,
                          env=environment, capture_output=True, text=True, timeout=600)
  assert result.returncode == 0, result.stderr[-3000:]
  assert result.stdout.count("all agree") == ranks
