"""bench/peers/sheaf_library.py: Sheaf's C API through ctypes, as far as the comparison needs it.

The structs are those of include/sheaf/plan.h and of <dlpack/dlpack.h>.
"""
import ctypes as c

DTYPES = {"f32": 1, "f64": 2, "f16": 3, "bf16": 4, "i32": 5, "i64": 6, "u8": 7, "int8": 8, "int4": 9}
ITEM_BYTES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "u8": 1}
# DLPack's codes: int 0, uint 1, float 2, bfloat 4.
DL_TYPES = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i32": (0, 32), "i64": (0, 64),
            "u8": (1, 8)}
EMBEDDING_KINDS = {"lookup": 0, "lookup_backward": 1, "bag_sum": 2, "bag_mean": 3, "bag_sum_backward": 4,
                   "bag_mean_backward": 5, "bag_max": 6, "bag_max_backward": 7}
SEGMENT_KINDS = {"segment_sum": 0, "segment_sum_backward": 1, "segment_mean": 2, "segment_max": 4,
                 "unsorted_segment_sum": 7, "unsorted_segment_sum_backward": 8, "unsorted_segment_max": 11}


class Device(c.Structure):
  _fields_ = [("device_type", c.c_int32), ("device_id", c.c_int32)]


class DataType(c.Structure):
  _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Tensor(c.Structure):
  _fields_ = [("data", c.c_void_p), ("device", Device), ("ndim", c.c_int32), ("dtype", DataType),
              ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class Operand(c.Structure):
  _fields_ = [("tensor", c.POINTER(Tensor)), ("bytes", c.c_size_t)]


class EmbeddingDesc(c.Structure):
  _fields_ = ([("struct_size", c.c_size_t), ("device", Device)] +
              [(name, c.c_int) for name in
               ("kind", "dtype", "index_dtype", "offset_dtype", "out_dtype", "bag_form")] +
              [(name, c.c_int64) for name in
               ("rows", "dim", "indices", "bags", "row_begin", "total_rows", "padding_idx", "batch")] +
              [(name, c.c_uint8) for name in ("has_padding", "weighted", "scale_grad_by_freq", "grouping_given")] +
              [(name, c.c_int) for name in ("padding", "bad_index", "grad_write")])


class EmbeddingArgs(c.Structure):
  _fields_ = ([("struct_size", c.c_size_t)] +
              [(name, Operand) for name in ("table", "indices", "offsets", "weights", "grad_out", "out", "arg",
                                            "table_grad", "weights_grad")] +
              [("grouping", c.c_void_p), ("grouping_bytes", c.c_size_t), ("report", c.c_void_p)])


class SegmentDesc(c.Structure):
  _fields_ = ([("struct_size", c.c_size_t), ("device", Device)] +
              [(name, c.c_int) for name in ("kind", "dtype", "index_dtype")] +
              [(name, c.c_int64) for name in ("rows", "dim", "segments", "batch")] +
              [(name, c.c_uint8) for name in ("arg_given", "grouping_given")] +
              [(name, c.c_int) for name in ("empty", "ties", "bad_index")])


class SegmentArgs(c.Structure):
  _fields_ = ([("struct_size", c.c_size_t)] +
              [(name, Operand) for name in ("data", "ids", "grad_out", "out", "arg", "data_grad")] +
              [("grouping", c.c_void_p), ("grouping_bytes", c.c_size_t), ("report", c.c_void_p)])


class Preference(c.Structure):
  _fields_ = [("struct_size", c.c_size_t), ("max_workspace", c.c_size_t), ("threads", c.c_int), ("backend", c.c_int),
              ("deterministic", c.c_int), ("kernel", c.c_char_p)]


class Guarantee(c.Structure):
  _fields_ = [("math", c.c_int), ("accumulator", c.c_int), ("deterministic", c.c_uint8), ("same_hardware", c.c_uint8),
              ("across_hardware", c.c_uint8)]


class Sku(c.Structure):
  _fields_ = [("category", c.c_int), ("kind", c.c_uint16), ("element", c.c_int), ("index_element", c.c_int),
              ("arch", c.c_int), ("backend", c.c_int), ("guarantee", Guarantee), ("name", c.c_char * 64)]


class Library:
  """libsheaf.so, opened."""

  def __init__(self, path):
    self.functions = lib = c.CDLL(path)
    lib.sheaf_version.restype = lib.sheaf_last_error.restype = lib.sheaf_cpu_name.restype = c.c_char_p
    lib.sheaf_plan_workspace_size.restype = c.c_size_t
    lib.sheaf_plan_workspace_size.argtypes = lib.sheaf_plan_free.argtypes = lib.sheaf_plan_sku.argtypes = [c.c_void_p]
    lib.sheaf_plan_sku.restype = Sku
    lib.sheaf_table_alloc.argtypes = [c.c_size_t, c.POINTER(c.c_void_p)]
    lib.sheaf_table_free.argtypes = [c.c_void_p, c.c_size_t]
    lib.sheaf_table_free.restype = lib.sheaf_plan_free.restype = None
    lib.sheaf_dtype_row_bytes.argtypes, lib.sheaf_dtype_row_bytes.restype = [c.c_int, c.c_int64], c.c_int64
    for family, desc, args in (("embedding", EmbeddingDesc, EmbeddingArgs), ("segment", SegmentDesc, SegmentArgs)):
      getattr(lib, f"sheaf_{family}_select").argtypes = [c.POINTER(desc), c.POINTER(Preference), c.POINTER(c.c_void_p)]
      getattr(lib, f"sheaf_{family}_run").argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.POINTER(args)]

  def check(self, status):
    if status:
      raise RuntimeError(f"status {status}: {self.functions.sheaf_last_error().decode()}")

  def version(self):
    return self.functions.sheaf_version().decode()

  def cpu(self):
    return self.functions.sheaf_cpu_name().decode()

  def row_bytes(self, dtype, dim):
    return self.functions.sheaf_dtype_row_bytes(DTYPES[dtype], dim)

  def allocate(self, count):
    """Memory for `count` bytes on huge pages, as a ctypes array; free it with release."""
    place = c.c_void_p()
    self.check(self.functions.sheaf_table_alloc(count, c.byref(place)))
    return (c.c_char * count).from_address(place.value)

  def release(self, block):
    self.functions.sheaf_table_free(c.addressof(block), len(block))


class Plan:
  """One problem and its operands; call it to run it. `operands` are (name, torch tensor, dtype)."""

  def __init__(self, library, family, desc_fields, operands, threads):
    self.library, self.kept = library, []
    self.arguments = (EmbeddingArgs if family == "embedding" else SegmentArgs)()
    self.arguments.struct_size = c.sizeof(self.arguments)
    self.tensors = {name: self._add(name, tensor, dtype) for name, tensor, dtype in operands}
    desc = (EmbeddingDesc if family == "embedding" else SegmentDesc)(**desc_fields)
    desc.struct_size = c.sizeof(desc)
    preference = Preference(threads=threads)
    preference.struct_size = c.sizeof(preference)
    self.handle = c.c_void_p()
    functions = library.functions
    library.check(getattr(functions, f"sheaf_{family}_select")(c.byref(desc), c.byref(preference),
                                                               c.byref(self.handle)))
    self.run = getattr(functions, f"sheaf_{family}_run")
    self.sku = functions.sheaf_plan_sku(self.handle).name.decode()
    self.workspace_bytes = functions.sheaf_plan_workspace_size(self.handle)
    self.workspace = self._allocate(self.workspace_bytes) if self.workspace_bytes else None

  def _allocate(self, count):
    return self.library.allocate(count)

  @staticmethod
  def _device(_):
    return Device(1, 0)

  def _add(self, name, tensor, dtype):
    shape = (c.c_int64 * tensor.dim())(*tensor.shape)
    code, bits = DL_TYPES["u8" if dtype in ("int8", "int4") else dtype]
    described = Tensor(tensor.data_ptr(), self._device(tensor), tensor.dim(), DataType(code, bits, 1), shape, None, 0)
    self.kept += [tensor, shape, described]
    setattr(self.arguments, name, Operand(c.pointer(described), 0))
    return described

  def point(self, name, tensor):
    """Takes another tensor of the same shape for an operand."""
    self.tensors[name].data = tensor.data_ptr()

  def __call__(self):
    place = c.addressof(self.workspace) if self.workspace else None
    status = self.run(self.handle, place, self.workspace_bytes, None, c.byref(self.arguments))
    if status:
      self.library.check(status)

  def close(self):
    self.library.functions.sheaf_plan_free(self.handle)
    if self.workspace:
      self.library.release(self.workspace)
