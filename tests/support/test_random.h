/* test_random.h: the tests' own random numbers, the same on every machine for the same seed. */
#ifndef SHEAF_TESTS_TEST_RANDOM_H
#define SHEAF_TESTS_TEST_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct test_random {
  uint64_t state;
} test_random;

/* splitmix64 */
static inline uint64_t random_bits(test_random *random)
{
  random->state += 0x9E3779B97F4A7C15u;
  uint64_t z = random->state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* In 0 .. limit - 1; 0 when limit is not positive. */
static inline int64_t random_below(test_random *random, int64_t limit)
{
  const uint64_t bits = random_bits(random);
  return limit > 0 ? (int64_t)(bits % (uint64_t)limit) : 0;
}

/* In [0, 1). */
static inline double random_unit(test_random *random) { return (double)(random_bits(random) >> 11) * 0x1p-53; }

static inline bool random_chance(test_random *random, double share) { return random_unit(random) < share; }

#endif
