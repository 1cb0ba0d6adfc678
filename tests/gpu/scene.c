/* scene.c: scenes of ops on tensors, played on the CPU and on the device. */
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_support.h"

enum { MOST_SHOWN = 4096 };

const DLDevice cpu = {kDLCPU, 0};
DLDevice scene_stage;

static sheaf_tensor *shown[2][MOST_SHOWN];
static int shown_count[2];

int scene_on_gpu(void) { return scene_stage.device_type == kDLCUDA; }

sheaf_tensor *scene_tensor(sheaf_tensor *t)
{
  sheaf_tensor *there = NULL;
  expect_ok(sheaf_tensor_to(t, scene_stage, &there));
  return tensor_keep(there);
}

sheaf_tensor *scene_floats(sheaf_dtype dtype, uint64_t seed, int rank, const int64_t *shape)
{
  return scene_tensor(tensor_random(dtype, rank, shape, seed));
}

sheaf_tensor *scene_ints(sheaf_dtype dtype, int64_t limit, uint64_t seed, int rank, const int64_t *shape)
{
  return scene_tensor(tensor_random_ints(dtype, limit, rank, shape, seed));
}

void scene_show(sheaf_tensor *t)
{
  sheaf_tensor *copy = NULL;
  assert_non_null(t);
  assert_int_equal(sheaf_keyset_contains(sheaf_tensor_keys(t), SHEAF_KEY_CUDA), scene_on_gpu());
  if (sheaf_tensor_part(t, 0)) {
    scene_show(sheaf_tensor_part(t, 0));
    if (sheaf_tensor_part(t, 1)) scene_show(sheaf_tensor_part(t, 1));
    return;
  }
  if (!scene_on_gpu() && sheaf_tensor_form(t) == SHEAF_FORM_DENSE) /* the tensor itself may be written into later */
    expect_ok(sheaf_movedim(t, 0, 0, &copy));
  else
    expect_ok(sheaf_tensor_to(t, cpu, &copy));
  int *count = &shown_count[scene_on_gpu()];
  assert_true(*count < MOST_SHOWN);
  shown[scene_on_gpu()][(*count)++] = tensor_keep(copy);
}

sheaf_tensor *scene_result(sheaf_status status, sheaf_tensor **out)
{
  expect_ok(status);
  scene_show(tensor_keep(*out));
  return *out;
}

static size_t memory_bytes(const sheaf_tensor *t)
{
  const DLTensor *dl = sheaf_tensor_dl(t);
  size_t bytes = dl->dtype.bits / 8;
  for (int i = 0; i < dl->ndim; i++) bytes *= (size_t)dl->shape[i];
  return bytes;
}

static void compare(void)
{
  assert_int_equal(shown_count[0], shown_count[1]);
  assert_true(shown_count[0] > 0);
  for (int i = 0; i < shown_count[0]; i++) {
    const sheaf_tensor *a = shown[0][i], *b = shown[1][i];
    assert_int_equal(sheaf_tensor_dtype(a), sheaf_tensor_dtype(b));
    assert_int_equal(memory_bytes(a), memory_bytes(b));
    if (memory_bytes(a) && memcmp(sheaf_tensor_data(a), sheaf_tensor_data(b), memory_bytes(a)) != 0)
      fail_msg("result %d of %d differs from the CPU's", i, shown_count[0]);
  }
}

void scene_play(void (*scene)(void))
{
  shown_count[0] = shown_count[1] = 0;
  scene_stage = cpu;
  scene();
  scene_stage = gpu;
  scene();
  compare();
}
