"""bench/peers/contenders.py: one problem as Sheaf, PyTorch and FBGEMM do it.

Each function takes the data of a problem and gives a dictionary of names and calls; a call takes the number of an index
set. What a library cannot do is left out.

Every call makes its result anew, as PyTorch's and FBGEMM's do, and drops it: the memory of a result is that of the one
before it, whoever made that. (Sheaf alone would otherwise write to memory of its own, which is cold where theirs is
not.) Gradients are written into something given, by everyone.
"""
import dataclasses

import torch
from torch.nn import functional

from problems import TORCH_TYPES
from sheaf_library import DTYPES, EMBEDDING_KINDS, SEGMENT_KINDS, Plan

@dataclasses.dataclass
class Data:
  problem: object
  table: torch.Tensor
  index_sets: list
  threads: int

  def __post_init__(self):
    p = self.problem
    kind = TORCH_TYPES[p.plain_dtype]
    torch.manual_seed(2)
    self.offsets = torch.arange(0, p.count + 1, p.length) if p.length else None  # with the end
    self.weights = torch.rand(p.count).to(kind) if p.mode == "weighted" else None
    self.float_weights = self.weights.float() if p.mode == "weighted" else None  # FBGEMM wants them so
    out_rows = p.segments or p.bags or p.count
    self.out = torch.zeros(out_rows, p.dim, dtype=kind)
    if p.mode in ("bag_sum_backward", "segment_sum_backward"):
      self.out = (2 * torch.rand(out_rows, p.dim) - 1).to(kind)  # the gradient that flows in


# ---- Sheaf -----------------------------------------------------------------------------------------------------------


def run_anew(plan, like):
  out = torch.empty_like(like)
  plan.point("out", out)
  plan()
  return out


def sheaf_plan(library, data):
  """The plan as (call, plan)."""
  p = data.problem
  common = {"dtype": DTYPES[p.dtype], "index_dtype": DTYPES["i64"], "dim": p.dim}
  if p.segments:
    backward = p.mode == "segment_sum_backward"
    desc = dict(common, kind=SEGMENT_KINDS[p.mode], rows=p.count, segments=p.segments)
    operands = [("data_grad" if backward else "data", data.table, p.dtype), ("ids", data.index_sets[0], "i64"),
                ("grad_out" if backward else "out", data.out, p.dtype)]
    plan = Plan(library, "segment", desc, operands, data.threads)
    return (lambda number: plan() if backward else run_anew(plan, data.out)), plan
  backward = p.mode == "bag_sum_backward"
  kind = EMBEDDING_KINDS.get(p.mode, EMBEDDING_KINDS["bag_sum"])
  desc = dict(common, kind=kind, rows=p.rows, indices=p.count, bags=p.bags, weighted=p.mode == "weighted",
              has_padding=p.mode == "padded")
  operands = [("table_grad" if backward else "table", data.table, p.dtype), ("indices", data.index_sets[0], "i64"),
              ("grad_out" if backward else "out", data.out, p.plain_dtype)]
  if p.length:
    operands.append(("offsets", data.offsets[:-1], "i64"))
  if p.mode == "weighted":
    operands.append(("weights", data.weights, p.plain_dtype))
  if p.mode == "bag_max":
    operands.append(("arg", torch.zeros(p.bags, p.dim, dtype=torch.int64), "i64"))
  plan = Plan(library, "embedding", desc, operands, data.threads)

  def call(number):
    plan.point("indices", data.index_sets[number])
    if p.mode == "bag_max":
      arg = torch.empty(p.bags, p.dim, dtype=torch.int64)
      plan.point("arg", arg)
    return plan() if backward else run_anew(plan, data.out)
  return call, plan


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_bags(data):
  p, table, sets, starts = data.problem, data.table, data.index_sets, data.offsets[:-1]
  if p.dtype in ("int8", "int4"):
    op = torch.ops.quantized.embedding_bag_byte_rowwise_offsets if p.dtype == "int8" else \
      torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
    return {"torch.quantized": lambda number: op(table, sets[number], starts, include_last_offset=False)}
  mode = {"bag_mean": "mean", "bag_max": "max"}.get(p.mode, "sum")
  padding = 0 if p.mode == "padded" else None  # -1 would be the last row, and off the fast path

  def bag(number):
    return functional.embedding_bag(sets[number], table, starts, mode=mode, per_sample_weights=data.weights,
                                    padding_idx=padding)
  return {"torch.embedding_bag": bag}


def torch_calls(data):
  p, table, sets = data.problem, data.table, data.index_sets
  if p.mode == "lookup":
    return {"torch.index_select": lambda number: torch.index_select(table, 0, sets[number]),
            "torch.embedding": lambda number: torch.embedding(table, sets[number])}
  if p.mode == "bag_sum_backward":
    expanded = data.out.repeat_interleave(p.length, 0)  # not timed
    return {"torch.index_add": lambda number: table.index_add_(0, sets[number], expanded)}
  if p.mode == "segment_sum_backward":
    return {"torch.index_select": lambda number: torch.index_select(data.out, 0, sets[number], out=table)}
  if p.mode == "unsorted_segment_sum":
    return {"torch.index_add": lambda number: torch.zeros_like(data.out).index_add_(0, sets[number], table)}
  if p.mode == "segment_sum":
    lengths = torch.bincount(sets[0], minlength=p.segments)
    return {"torch.segment_reduce": lambda number: torch.segment_reduce(table, "sum", lengths=lengths, unsafe=True),
            "torch.index_add": lambda number: torch.zeros_like(data.out).index_add_(0, sets[number], table)}
  return torch_bags(data)


# ---- FBGEMM ----------------------------------------------------------------------------------------------------------

SUM, MEAN = 0, 1
ON_HOST = 3
NBIT_TYPES = {"f32": 0, "f16": 1, "int8": 2, "int4": 3}  # its SparseType
NBIT_OUTPUTS = {"f32": 0, "f16": 1}


def fbgemm_inference(data, sets, offsets, pooling):
  """Its kernels for inference: f32, f16 and quantised rows. Rows of theirs carry scale and bias as f16 in front."""
  p = data.problem
  table = data.table
  if p.dtype in ("int8", "int4"):
    row = (p.dim if p.dtype == "int8" else (p.dim + 1) // 2) + 4
    table = table.reshape(-1)[:p.rows * row].clone().view(-1, row)
    table[:, :4] = torch.tensor([0.01, -1.0], dtype=torch.float16).view(torch.uint8)
  raw = table.reshape(-1).view(torch.uint8)
  widths = [p.dim if p.dtype == dtype else 0 for dtype in ("int2", "int4", "int8", "f16", "f32")]
  fixed = (raw, raw, torch.full((1,), ON_HOST, dtype=torch.int32), torch.zeros(1, dtype=torch.int64),
           torch.tensor([NBIT_TYPES[p.dtype]], dtype=torch.uint8), torch.tensor([0, p.dim], dtype=torch.int32), p.dim)
  op = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function.default
  output = NBIT_OUTPUTS[p.plain_dtype]

  def call(number):
    return op(*fixed, *widths, sets[number], offsets, pooling, data.float_weights, output, row_alignment=1)
  return call


def fbgemm_training(data, sets, offsets, pooling, optimizer="sgd"):
  """Its kernels for training: f32 and f16. Gives (forward, tensor whose gradient updates the rows)."""
  p = data.problem
  weights = data.table.reshape(-1)
  bits = max(p.rows - 1, 1).bit_length()
  fixed = (weights, torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64),
           torch.tensor([0, p.dim], dtype=torch.int32), p.dim, p.dim, torch.tensor([0, p.rows]), bits)
  op = getattr(torch.ops.fbgemm, f"split_embedding_codegen_lookup_{optimizer}_function_cpu").default
  settings = (0.01,)  # learning rate
  if optimizer == "rowwise_adagrad":
    momentum = (torch.zeros(p.rows), torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64))
    settings = (*momentum, 1e-8, 0.01, 0.0, 0, 0.0)

  def call(number):
    return op(*fixed, sets[number], offsets, pooling, data.float_weights, None, False, 0.0, False, *settings,
              output_dtype=0 if p.plain_dtype == "f32" else 1)
  return call, weights


def fbgemm_backward(data, optimizer):
  """Backward with its fused update of the touched rows; the forward pass before it is not timed."""
  forward, weights = fbgemm_training(data, data.index_sets, data.offsets, SUM, optimizer)
  weights.requires_grad_(True)
  state = {}

  def before(number):
    with torch.enable_grad():
      state["out"] = forward(number)

  def call(number):
    state.pop("out").backward(data.out)
  call.before = before
  return call


def fbgemm_calls(data):
  p = data.problem
  if not hasattr(torch.ops.fbgemm, "int_nbit_split_embedding_codegen_lookup_function"):
    return {}
  if p.mode == "bag_sum_backward":
    return {f"fbgemm.{optimizer}": fbgemm_backward(data, optimizer)
            for optimizer in ("sgd", "rowwise_adagrad")}
  if p.mode in ("bag_max", "padded", "unsorted_segment_sum", "segment_sum_backward") or p.dtype not in NBIT_TYPES:
    return {}
  if p.mode == "segment_sum":  # bags of consecutive rows
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64),
                         torch.bincount(data.index_sets[0], minlength=p.segments).cumsum(0)])
    straight = dataclasses.replace(p, rows=p.count)
    whole = dataclasses.replace(data, problem=straight)
    return {"fbgemm.inference": fbgemm_inference(whole, [torch.arange(p.count)], offsets, SUM)}
  pooling = MEAN if p.mode == "bag_mean" else SUM
  offsets = torch.arange(p.count + 1) if p.mode == "lookup" else data.offsets  # bags of one row
  calls = {"fbgemm.inference": fbgemm_inference(data, data.index_sets, offsets, pooling)}
  if p.dtype in ("f32", "f16"):
    calls["fbgemm.training"] = fbgemm_training(data, data.index_sets, offsets, pooling)[0]
  return calls
