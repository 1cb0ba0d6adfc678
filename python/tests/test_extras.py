"""What stands beside the ops: plans, quantised tables, profiles, traces, files, plans for meshes, what there is."""
import json
import os
import sys

import numpy as np
import pytest

import sheaf

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.standard_normal((50, 12)).astype(np.float32)
INDEX = RANDOM.integers(0, 50, (7, 4))


def test_info_and_kernels():
  info = sheaf.info()
  assert info["version"] == sheaf.__version__ and info["threads"] >= 1
  kernels = sheaf.kernels()
  assert len(kernels) == info["kernels"] > 100
  assert all(k["deterministic"] for k in kernels) and any(k["available"] for k in kernels)
  assert {"lookup", "bag_max_backward", "unsorted_segment_prod"} <= {k["op"] for k in kernels}


def test_a_plan_is_run_again_and_again():
  plan = sheaf.Plan("bag_sum", dtype="f32", index_dtype="i64", rows=50, dim=12, indices=28, bags=7, bag_form="matrix",
                    threads=2)
  assert plan.kernel["op"] == "bag_sum" and plan.kernel["name"] in repr(plan)
  out = np.empty((7, 12), np.float32)
  for _ in range(3):
    assert plan.run(table=TABLE, indices=INDEX, out=out) is None
  assert np.allclose(out, TABLE[INDEX].sum(1), atol=1e-5)
  bad = INDEX.copy()
  bad[1, 2] = 77
  assert plan.run(table=TABLE, indices=bad, out=out, report=True) == {"count": 1, "position": 6, "value": 77}


def test_a_plans_gradient_is_added_to_what_is_there():
  plan = sheaf.Plan("lookup_backward", dtype="f32", index_dtype="i64", rows=50, dim=12, indices=3, padding_idx=2)
  grad = np.ones((50, 12), np.float32)
  plan.run(grad_out=TABLE[:3], indices=np.array([4, 2, 4]), table_grad=grad)
  assert np.allclose(grad[4], 1 + TABLE[0] + TABLE[2]) and (grad[2] == 1).all()


@pytest.mark.parametrize("arguments, error, words", [
  ({}, ValueError, "dtype is not set"),
  ({"dtype": "f32", "index_dtype": "i64", "rows": -1, "dim": 3}, ValueError, "rows"),
  ({"dtype": "f31"}, TypeError, "dtype is 'f31'"),
  ({"dtype": "f32", "speed": 3}, TypeError, "no argument 'speed'"),
  ({"dtype": "f32", "index_dtype": "i64", "rows": 3, "dim": 3, "device": "tpu"}, ValueError, "device is 'tpu'"),
  ({"dtype": "f32", "index_dtype": "i64", "rows": 3, "dim": 3, "kernel": "none"}, NotImplementedError, "none"),
])
def test_plans_that_cannot_be(arguments, error, words):
  with pytest.raises(error, match=words):
    sheaf.Plan("lookup", **arguments)


def test_a_plan_refuses_other_operands():
  plan = sheaf.Plan("lookup", dtype="f32", index_dtype="i64", rows=50, dim=12, indices=4)
  with pytest.raises(ValueError, match="out"):
    plan.run(table=TABLE, indices=np.arange(4), out=np.empty((5, 12), np.float32))
  with pytest.raises(ValueError, match="table"):
    plan.run(indices=np.arange(4), out=np.empty((4, 12), np.float32))
  with pytest.raises(TypeError, match="no argument 'tabel'"):
    plan.run(tabel=TABLE)


@pytest.mark.parametrize("dtype, steps", [("int8", 255), ("int4", 15)])
def test_quantised_tables(dtype, steps):
  table = TABLE[:, :11]
  packed = sheaf.quantize(table, dtype)
  step = (table.max(1) - table.min(1)).max() / steps
  restored = packed.dequantize()
  assert packed.shape == table.shape and np.abs(restored - table).max() <= step
  assert np.array_equal(sheaf.embedding(INDEX, packed), restored[INDEX])
  sums = sheaf.embedding_bag(INDEX, packed, mode="sum", per_sample_weights=np.full(INDEX.shape, 0.5, np.float32))
  assert np.allclose(sums, restored[INDEX].sum(1) / 2, atol=1e-4)
  assert sheaf.embedding_bag(INDEX, packed, out_dtype="f16").dtype == np.float16
  with pytest.raises(ValueError, match="row 3"):
    sheaf.quantize(np.where(np.arange(50)[:, None] == 3, np.float32("nan"), table), dtype)
  with pytest.raises(ValueError, match="rows of 30 elements take"):
    sheaf.QuantizedTable(packed.packed, dtype, 30)


def test_rows_of_other_types_are_quantised_and_come_back_in_others():
  packed = sheaf.quantize(TABLE.astype(np.float16), "int8")
  assert np.array_equal(packed.packed, sheaf.quantize(TABLE.astype(np.float16).astype(np.float32), "int8").packed)
  assert np.array_equal(sheaf.quantize(TABLE.tolist(), "int4").packed,
                        sheaf.quantize(TABLE.astype(np.float64), "int4").packed)
  for name in ("float64", "float16"):
    assert np.array_equal(sheaf.dequantize(packed, name), sheaf.dequantize(packed).astype(name))
    assert sheaf.dequantize(packed, name).dtype == name
  with pytest.raises(ValueError, match="dtype is i64; rows come back as f32, f64, f16 or bf16"):
    sheaf.dequantize(packed, "i64")
  with pytest.raises(TypeError, match="a QuantizedTable is needed"):
    sheaf.dequantize(packed.packed)
  with pytest.raises(ValueError, match="rows have 1 dimension; 2 are needed"):
    sheaf.quantize(TABLE[0])
  for name in ("f32", "int2"):
    with pytest.raises(ValueError, match=f"dtype is '{name}'; rows are packed as 'int8' or 'int4'"):
      sheaf.quantize(TABLE, name)


def nearest_by_loops(query, table, k, metric, excluded=None):
  """Row numbers and scores by NumPy in double precision."""
  q, rows = query.astype(np.float64), table.astype(np.float64)
  with np.errstate(invalid="ignore"):
    scores = {"dot": rows @ q, "l2": ((rows - q)**2).sum(1),
              "cosine": rows @ q / np.linalg.norm(q) / np.linalg.norm(rows, axis=1)}[metric]
  order = np.argsort(scores if metric == "l2" else -scores, kind="stable")
  order = [r for r in order if r != excluded][:k]
  return order, scores[order]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nearest_rows(metric, dtype):
  table = TABLE.astype(dtype)
  rows, scores = sheaf.nearest(table[3], table, 5, metric=metric)
  expected, values = nearest_by_loops(table[3], table, 5, metric)
  assert rows.tolist() == [int(r) for r in expected] and np.allclose(scores, values, rtol=1e-3)
  assert rows.dtype == np.int64 and scores.dtype == ("float64" if dtype == "float64" else "float32")
  rows, scores = sheaf.nearest(table[[3, 7]], table, 60, metric=metric, exclude=np.array([3, 7]))
  assert rows.shape == scores.shape == (2, 49)  # all rows but one
  for at, row in ((0, 3), (1, 7)):
    assert rows[at].tolist() == [int(r) for r in nearest_by_loops(table[row], table, 60, metric, row)[0]]
  assert sheaf.nearest(table[3], table[:, ::-1], 1, metric=metric)[0].shape == (1,)
  packed = sheaf.quantize(TABLE, "int8")
  assert np.array_equal(sheaf.nearest(TABLE[3], packed, 4, metric=metric)[0],
                        sheaf.nearest(TABLE[3], packed.dequantize(), 4, metric=metric)[0])


@pytest.mark.parametrize("call, error, words", [
  (lambda: sheaf.nearest(TABLE[0], TABLE, 0), ValueError, "k is 0; at least 1"),
  (lambda: sheaf.nearest(TABLE[0, :5], TABLE), ValueError, "query has 5 columns, the table 12"),
  (lambda: sheaf.nearest(TABLE[None], TABLE), ValueError, "query 3; a table has 2, queries 1 or 2"),
  (lambda: sheaf.nearest(TABLE[0], TABLE, metric="far"), ValueError, "metric is 'far'; it is one of cosine"),
  (lambda: sheaf.nearest(TABLE[0], TABLE, exclude=50), IndexError, "exclude: 50 is outside the 50 rows"),
  (lambda: sheaf.nearest(TABLE[:2], TABLE, exclude=[1]), ValueError, "exclude has 1 entries for 2 queries"),
  (lambda: sheaf.nearest(INDEX[0], TABLE), TypeError, "query has elements of int64"),
])
def test_searches_that_cannot_be(call, error, words):
  with pytest.raises(error, match=words):
    call()


def test_nearest_of_nothing():
  assert sheaf.nearest(TABLE[0], TABLE[:0])[0].shape == (0,)
  assert sheaf.nearest(TABLE[:0], TABLE, 3)[1].shape == (0, 3)
  assert sheaf.nearest(TABLE[0], TABLE[:1], exclude=0)[0].shape == (0,)


def test_autocast():
  half, weights = TABLE.astype(np.float16), np.full(INDEX.shape, 0.3, np.float32)
  sums = sheaf.embedding_bag(INDEX, half, mode="sum", per_sample_weights=weights.astype(np.float16))
  with sheaf.autocast("f16"):
    for _ in range(2):
      assert sheaf.embedding(INDEX, TABLE).tobytes() == half[INDEX].tobytes()
      assert sheaf.embedding_bag(INDEX, TABLE, mode="sum", per_sample_weights=weights).tobytes() == sums.tobytes()
    out = np.empty((7, 12), np.float16)
    assert sheaf.embedding_bag(INDEX, TABLE, mode="max", out=out, return_arg=True)[0] is out
    assert sheaf.embedding_bag(INDEX, sheaf.quantize(TABLE)).dtype == np.float16
    assert sheaf.embedding(INDEX, TABLE.astype(np.float64)).dtype == np.float64
    assert sheaf.segment_sum(TABLE, np.zeros(50, int), 1).dtype == np.float32
    with sheaf.autocast(enabled=False):
      assert sheaf.embedding(INDEX, TABLE).dtype == np.float32
    for copy in (TABLE.copy() for _ in range(100)):  # each table is kept, but not all of them
      assert sheaf.embedding(INDEX, copy).dtype == np.float16
    with pytest.raises(TypeError, match="out has elements of f32; f16 is needed"):
      sheaf.embedding(INDEX, TABLE, out=np.empty((7, 4, 12), np.float32))
  assert sheaf.embedding(INDEX, TABLE).dtype == np.float32
  with pytest.raises(NotImplementedError, match="autocast to f32"), sheaf.autocast("f32"):
    pass
  with pytest.raises(ValueError, match="has not begun"):
    sheaf._core.autocast_end()


def test_profiles(tmp_path):
  with sheaf.profile() as p:
    sheaf.embedding(INDEX, TABLE)
    sheaf.embedding_bag(INDEX, TABLE)
  assert [r["op"] for r in p.records] == ["embedding", "embedding_bag"]
  assert p.records[1]["kernel"].startswith("bag_mean.f32.i64/") and p.records[0]["shapes"][0] == (50, 12)
  assert "embedding_bag" in p.table
  p.save(tmp_path / "calls.json")
  events = json.loads((tmp_path / "calls.json").read_text())
  assert any("embedding" in str(event) for event in (events if isinstance(events, list) else events["traceEvents"]))
  with pytest.raises(ValueError):
    sheaf._core.profiler_end()


def test_traces_join_calls_and_run_again():
  ids = np.repeat(np.arange(7), 4)
  with sheaf.trace() as t:
    rows = sheaf.embedding(INDEX.ravel(), TABLE)
    sheaf.segment_sum(rows, ids, 7)
  assert t.graph.counts == (3, 2, 1)
  assert "embedding" in t.graph.text and "digraph" in t.graph.dot
  index = (INDEX.ravel() + 1) % 50
  expected = sheaf.segment_sum(sheaf.embedding(index, TABLE * 2), ids, 7)
  assert np.array_equal(t.replay(TABLE * 2, index, ids)[0], expected)
  again = sheaf.trace.from_json(t.graph.json)
  assert np.array_equal(again.replay(TABLE * 2, index, ids)[0], expected)
  with pytest.raises(ValueError, match="graph of 3 inputs"):
    t.replay(TABLE)


def test_traces_of_arrays_seen_in_several_shapes():
  with sheaf.trace() as t:
    cube = sheaf.embedding(INDEX, TABLE)  # [7, 4, 12]
    sums = sheaf.segment_sum(cube, [0, 0, 0, 1, 1, 1, 1], 2)
    again = sheaf.segment_sum(cube, [0, 0, 0, 1, 1, 1, 1], 2)
  assert sums.shape == (2, 4, 12) and np.array_equal(sums, again)
  assert np.allclose(sums[0], TABLE[INDEX[:3]].sum(0), atol=1e-5) and t.graph.counts[1] == 3


def test_files(tmp_path):
  names = {"table": TABLE, "index": INDEX, "half": TABLE.astype(np.float16)}
  sheaf.save(tmp_path / "t.safetensors", names, {"made by": "a test"})
  loaded = sheaf.load(tmp_path / "t.safetensors")
  assert loaded.metadata == {"made by": "a test"} and set(loaded) == set(names)
  for name, expected in names.items():
    assert np.array_equal(loaded[name], expected) and loaded[name].dtype == expected.dtype
    assert not loaded[name].flags.writeable
  assert np.array_equal(sheaf.embedding(INDEX, sheaf.load(tmp_path / "t.safetensors", "table")), TABLE[INDEX])
  with pytest.raises(KeyError, match="'tabel' is not in .* which holds half, index, table"):
    sheaf.load(tmp_path / "t.safetensors", "tabel")
  sheaf.save(tmp_path / "t.npy", TABLE[::2])
  assert np.array_equal(np.load(tmp_path / "t.npy"), TABLE[::2])
  np.save(tmp_path / "u.npy", INDEX)
  assert np.array_equal(sheaf.load(str(tmp_path / "u.npy")), INDEX)
  with pytest.raises(OSError, match="none.npy"):
    sheaf.load(tmp_path / "none.npy")
  (tmp_path / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
  with pytest.raises(OSError):
    sheaf.load(tmp_path / "broken.safetensors")
  with pytest.raises(TypeError, match="arrays by name"):
    sheaf.save(tmp_path / "x.safetensors", TABLE)


def test_packed_tables_in_files_are_packed_tables(tmp_path):
  path = tmp_path / "q.safetensors"
  tables = {"a": sheaf.quantize(TABLE, "int8"), "b:c": sheaf.quantize(TABLE[:, :7], "int4"), "plain": TABLE}
  sheaf.save(path, tables, {"made by": "a test"})
  loaded = sheaf.load(path)
  # what `sheaf quantize` notes, and what it reads
  assert loaded.metadata == {"made by": "a test", "sheaf.quantized.a": "int8 12", "sheaf.quantized.b:c": "int4 7"}
  for name in ("a", "b:c"):
    assert isinstance(loaded[name], sheaf.QuantizedTable) and loaded[name].dtype == tables[name].dtype
    assert loaded[name].dim == tables[name].dim and np.array_equal(loaded[name].packed, tables[name].packed)
  for one in (sheaf.load(f"{path}:a"), sheaf.load(os.fsencode(path) + b":a"), sheaf.load(path, "a")):
    assert np.array_equal(sheaf.embedding(INDEX, one), sheaf.embedding(INDEX, tables["a"]))
  assert sheaf.load(f"{path}:b:c").shape == (50, 7)  # the first colon behind a file
  with pytest.raises(KeyError, match="'d' is not in"):
    sheaf.load(f"{path}:d")
  with pytest.raises(OSError, match="nowhere.safetensors:a"):
    sheaf.load(tmp_path / "nowhere.safetensors:a")
  with pytest.raises(ValueError, match="no room to say how rows are packed"):
    sheaf.save(tmp_path / "q.npy", tables["a"])
  # A note that somebody copied to what is no packed table is nothing to it.
  sheaf.save(path, {"a": np.arange(6, dtype=np.uint8), "b": TABLE}, {"sheaf.quantized.a": "nonsense"})
  assert np.array_equal(sheaf.load(path, "b"), TABLE)
  with pytest.raises(ValueError, match="the note of 'a', 'nonsense'"):
    sheaf.load(path)
  with pytest.raises(TypeError, match="names and metadata are strings; 1 is of type int"):
    sheaf.save(path, {1: TABLE})
  with pytest.raises(ValueError, match="row 1 ranges further than int8 rows can hold"):
    sheaf.quantize(np.array([[1, 2], [-3e38, 3e38]], np.float32))
  # What a file notes of tensors that are another's now is not kept; bytes stay what they are said to be.
  sheaf.save(path, {"a": TABLE, "b:c": loaded["b:c"].packed}, loaded.metadata)
  assert np.array_equal(sheaf.load(path, "a"), TABLE) and sheaf.load(path, "b:c").dtype == "int4"
  for note in ("int2 7", "int4 x", "int4", "int4 -7", "int8 \u0667"):
    sheaf.save(path, {"a": loaded["b:c"].packed}, {"sheaf.quantized.a": note})
    with pytest.raises(ValueError, match="is neither 'int8 COLUMNS' nor 'int4 COLUMNS'"):
      sheaf.load(path)
  sheaf.save(path, {"a": loaded["b:c"].packed}, {"sheaf.quantized.a": "int4 9"})
  with pytest.raises(ValueError, match="rows of 9 elements take 9 bytes"):
    sheaf.load(path)


def test_bfloat16_without_a_type_of_numpys(tmp_path, monkeypatch):
  # safetensors by hand: a header that says BF16, then the bits of 1, 2 and -2
  header = b'{"t":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}'
  bits = np.array([0x3F80, 0x4000, 0xC000], np.uint16)
  (tmp_path / "b.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bits.tobytes())
  monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # an import of it fails
  loaded = sheaf.load(tmp_path / "b.safetensors", "t")
  assert isinstance(loaded, sheaf._core.Memory) and loaded.dtype == "bf16"
  assert memoryview(loaded).tolist() == bits.tolist()
  monkeypatch.undo()
  pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed here")
  assert sheaf.load(tmp_path / "b.safetensors", "t").astype(np.float32).tolist() == [1, 2, -2]


def test_plans_for_meshes():
  plan = sheaf.shard.plan("lookup", 4, rows=1_000_000, dim=64, indices=4096, place={"table": "S(0)"})
  assert plan.best in plan.all and plan.best["bytes_table"] == 0 and plan.reason
  compatible = sheaf.shard.plan("lookup", (2, 2), rows=1000, dim=64, indices=(8, 4), compatible=True)
  assert len(compatible.all) == 25 and not any(s["addition"] for s in compatible.all)
  bags = sheaf.shard.plan("bag_sum", 2, rows=1000, dim=64, indices=(8, 4), bags=8, bag_form="matrix",
                          place={"table": "S(1)"}, out="R")
  assert bags.best["out"] in [("S(1)",), ("R",), ("S(0)",), ("P(sum)",)]
  none = sheaf.shard.plan("lookup", 2, rows=1000, dim=64, indices=8, memory_limit=1)
  assert none.best is None and none.reason
  with pytest.raises(ValueError, match="has no input ids; it has table, indices"):
    sheaf.shard.plan("lookup", 2, rows=1000, dim=64, indices=8, place={"ids": "R"})
  with pytest.raises(ValueError, match="mesh has 2 dimensions"):
    sheaf.shard.plan("lookup", (2, 2), rows=1000, dim=64, indices=8, place={"table": "S(0)"})


def test_a_mesh_of_this_process_alone():
  mesh = sheaf.shard.Mesh(1)
  table, index = mesh.shard(TABLE, "S(0)", TABLE.shape), mesh.replicate(INDEX)
  out = sheaf.shard.embedding(index, table, out="R")
  assert np.array_equal(out.local, TABLE[INDEX]) and out.placements == ("R",) and mesh.rank == 0
  bags = sheaf.shard.embedding_bag(index, table, mode="sum", out="R")
  assert np.array_equal(bags.local, sheaf.embedding_bag(INDEX, TABLE, mode="sum"))
  grad = sheaf.shard.embedding_bag_backward(bags, index, 50, mode="sum", out="R")
  assert np.array_equal(grad.local, sheaf.embedding_bag_backward(bags.local, INDEX, 50, mode="sum"))
  with pytest.raises(IndexError, match="50 at position 0"):
    sheaf.shard.embedding(mesh.replicate(np.array([50])), table)
