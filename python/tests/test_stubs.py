"""The type stubs say what the extension has: every name, every parameter, every default."""
import ast
import inspect
import pathlib

import sheaf
from sheaf import _core

STUB = ast.parse((pathlib.Path(sheaf.__file__).parent / "_core.pyi").read_text())
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def test_every_name_of_the_extension_is_in_the_stub():
  assert {name for name in dir(_core) if not name.startswith("_")} == set(FUNCTIONS) | set(CLASSES)


def test_parameters_are_the_same():
  checked = 0
  for name, node in FUNCTIONS.items():
    function = getattr(_core, name)
    if not function.__text_signature__ or node.args.posonlyargs:
      continue
    parameters = inspect.signature(function).parameters.values()
    stub = [a.arg for a in node.args.args + node.args.kwonlyargs]
    assert stub == [p.name for p in parameters], name
    places = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
    assert places == len(node.args.args), name
    stub_defaults = [ast.literal_eval(d) for d in node.args.defaults + [d for d in node.args.kw_defaults if d]]
    assert stub_defaults == [p.default for p in parameters if p.default is not p.empty], name
    checked += 1
  assert checked >= 24


def test_members_of_classes_are_the_same():
  for name, node in CLASSES.items():
    stub = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
    stub |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)} - {"__new__", "__buffer__"}
    real = {key for key in vars(getattr(_core, name)) if not key.startswith("__") or "dlpack" in key}
    assert stub == real, name


def test_the_package_names_what_it_has():
  assert {"embedding", "embedding_bag", "segment_sum", "unsorted_segment_prod_backward", "Plan", "info", "kernels",
          "quantize", "profile", "trace", "load", "save", "shard"} <= set(sheaf.__all__)
  assert all(hasattr(sheaf, name) for name in sheaf.__all__)
