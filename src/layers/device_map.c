/* device_map.c: casts, sums, copies and fills of tensors on a device: steps and addresses for the plug-in's `map`. */
#include "core/device_api.h"
#include "layers/layers_impl.h"

/* A map over the box of `out`. */
static shf_device_map over(shf_map_kind kind, const sheaf_tensor *from, sheaf_tensor *out)
{
  shf_device_map map = {.kind = kind, .from = from->dtype, .to = out->dtype, .rank = out->rank, .out = shf_data(out)};
  for (int i = 0; i < out->rank; i++) {
    map.extent[i] = out->extent[i];
    map.out_step[i] = out->strides[i];
  }
  return map;
}

sheaf_status shf_map_copy(const sheaf_tensor *from, const int64_t *steps, sheaf_tensor *to)
{
  shf_device_map map = over(SHF_MAP_COPY, from, to);
  map.a = shf_data(from);
  for (int i = 0; i < to->rank; i++) map.a_step[i] = steps[i];
  return shf_place_map(to->dl.device, &map);
}

sheaf_status shf_map_cast(const sheaf_tensor *from, sheaf_tensor *to)
{
  if (from->dtype == to->dtype) return shf_map_copy(from, from->strides, to);
  shf_device_map map = over(SHF_MAP_CAST, from, to);
  map.a = shf_data(from);
  for (int i = 0; i < to->rank; i++) map.a_step[i] = from->strides[i];
  return shf_place_map(to->dl.device, &map);
}

sheaf_status shf_map_add(const sheaf_tensor *a, const sheaf_tensor *b, double alpha, sheaf_tensor *out)
{
  shf_device_map map = over(SHF_MAP_ADD, a, out);
  map.a = shf_data(a);
  map.b = shf_data(b);
  map.alpha = alpha;
  for (int i = 0; i < out->rank; i++) {
    map.a_step[i] = a->strides[i];
    map.b_step[i] = b->strides[i];
  }
  return shf_place_map(out->dl.device, &map);
}

sheaf_status shf_map_add_rows(sheaf_tensor *dense, const sheaf_tensor *ids, const sheaf_tensor *rows, double alpha)
{
  shf_device_map map = over(SHF_MAP_ADD, dense, dense);
  map.extent[0] = ids->extent[0];
  map.a = shf_data(dense);
  map.b = shf_data(rows);
  map.alpha = alpha;
  for (int i = 0; i < 2; i++) {
    map.a_step[i] = dense->strides[i];
    map.b_step[i] = rows->strides[i];
  }
  map.index = shf_data(ids);
  map.index_wide = ids->dtype == SHEAF_I64;
  map.index_limit = dense->extent[0];
  return shf_place_map(dense->dl.device, &map);
}

sheaf_status shf_map_fill(sheaf_tensor *out, double value)
{
  shf_device_map map = over(SHF_MAP_FILL, out, out);
  map.alpha = value;
  return shf_place_map(out->dl.device, &map);
}
