/* scene.h: scenes of ops on tensors: each is played on the CPU and on the device, and everything it shows must have the
 * same bits. Plays with the CUDA plug-in (tests/gpu/run.sh), and everywhere with a device of paper (tests/fake).
 *
 * Expectations fail the cmocka test they are in.
 */
#ifndef SHEAF_TESTS_SCENE_H
#define SHEAF_TESTS_SCENE_H

#include "support/tensors.h"

extern const DLDevice cpu;   /* the device is `gpu` of gpu_support.h */
extern DLDevice scene_stage; /* where the scene plays: one of the two */

int scene_on_gpu(void);

/* A tensor of the test's as the scene uses it: on its stage. */
sheaf_tensor *scene_tensor(sheaf_tensor *t);

/* Random tensors of a shape, and lists of numbers, on the stage. */
#define FLOATS(dtype, seed, ...) scene_floats(dtype, seed, SHAPE(__VA_ARGS__))
#define INTS(dtype, limit, seed, ...) scene_ints(dtype, limit, seed, SHAPE(__VA_ARGS__))
#define LIST(dtype, count, ...) scene_tensor(tensor_of(dtype, SHAPE(count), NUMBERS(__VA_ARGS__)))
sheaf_tensor *scene_floats(sheaf_dtype dtype, uint64_t seed, int rank, const int64_t *shape);
sheaf_tensor *scene_ints(sheaf_dtype dtype, int64_t limit, uint64_t seed, int rank, const int64_t *shape);

/* Keeps a copy on the host of a result, part by part. */
void scene_show(sheaf_tensor *t);

/* Shows the result of a call, and hands it back. */
#define SHOWN(out, call) ((out) = NULL, scene_result(call, &(out)))
sheaf_tensor *scene_result(sheaf_status status, sheaf_tensor **out);

/* Plays a scene on both, and compares what it showed. */
void scene_play(void (*scene)(void));

/* The test of a scene, and a test's entry in its program's list. */
#define SCENE(name)                     \
  static void test_##name(void **state) \
  {                                     \
    (void)state;                        \
    scene_play(name);                   \
  }
#define SCENE_TEST(name) cmocka_unit_test_teardown(name, tensors_teardown)

#endif
