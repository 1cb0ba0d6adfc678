/* test_dtype.c: 16-bit conversions against a search for the nearest value, sizes and DLPack types of elements.
 *
 * SHEAF_TEST_LONG=1 converts every one of the 2^32 floats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sheaf/tensor.h>
#include <string.h>

#include "support/environment.h"
#include "support/test_random.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- What a format's patterns mean, and the nearest of them ------------------------------------------------------ */

typedef struct format {
  const char *name;
  int mantissa_bits, bias;
  uint16_t infinity; /* the pattern of infinity; those above are NaN */
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  int last;             /* where the last search ended: floats in order need no other */
  double value[0x8000]; /* of each pattern without sign up to infinity, which counts as the next power of two */
} format;

static format formats[] = {{"f16", 10, 15, 0x7c00, sheaf_f16_to_f32, sheaf_f32_to_f16, 0, {0}},
                           {"bf16", 7, 127, 0x7f80, sheaf_bf16_to_f32, sheaf_f32_to_bf16, 0, {0}}};

static int make_values(void **state)
{
  (void)state;
  for (int f = 0; f < LENGTH(formats); f++)
    for (int pattern = 0; pattern <= formats[f].infinity; pattern++) {
      int exponent = pattern >> formats[f].mantissa_bits, mantissa = pattern - (exponent << formats[f].mantissa_bits);
      if (exponent) mantissa += 1 << formats[f].mantissa_bits;
      formats[f].value[pattern] =
          ldexp(mantissa, (exponent ? exponent : 1) - formats[f].bias - formats[f].mantissa_bits);
    }
  return 0;
}

/* Rounds to the nearest pattern, ties to the even one, by looking it up. Doubles hold every sum here exactly. */
static uint16_t nearest(format *f, float value)
{
  double magnitude = fabs((double)value);
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  int low = 0, high = f->infinity; /* value[low] <= magnitude, or magnitude is beyond all */
  if (magnitude >= f->value[high]) return (uint16_t)(sign | f->infinity);
  if (f->value[f->last] <= magnitude) low = f->last;
  if (f->value[f->last + 1] > magnitude) high = f->last + 1;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (f->value[middle] <= magnitude)
      low = middle;
    else
      high = middle;
  }
  f->last = low;
  double tie = (f->value[low] + f->value[high]) / 2;
  int up = magnitude > tie || (magnitude == tie && low % 2 == 1);
  return (uint16_t)(sign | (low + up));
}

static void check_narrow(format *f, uint32_t bits)
{
  float value = float_of(bits);
  uint16_t got = f->narrow(value);
  if (isnan(value)) {
    if ((got & 0x7fff) <= f->infinity) fail_msg("%s of NaN %08x is %04x, which is none", f->name, bits, got);
    if ((got ^ (bits >> 16)) & 0x8000) fail_msg("%s of NaN %08x is %04x: the sign is lost", f->name, bits, got);
    return;
  }
  uint16_t expected = nearest(f, value);
  if (got != expected) fail_msg("%s of %a (%08x) is %04x instead of %04x", f->name, (double)value, bits, got, expected);
}

/* ---- Widening ---------------------------------------------------------------------------------------------------- */

static void test_every_pattern_has_its_value(void **state)
{
  (void)state;
  for (int f = 0; f < LENGTH(formats); f++)
    for (int pattern = 0; pattern < 0x10000; pattern++) {
      float got = formats[f].widen((uint16_t)pattern);
      int magnitude = pattern & 0x7fff;
      if (magnitude > formats[f].infinity) {
        assert_true(isnan(got));
        continue;
      }
      double expected = magnitude == formats[f].infinity ? (double)INFINITY : formats[f].value[magnitude];
      if ((double)got != (pattern & 0x8000 ? -expected : expected) || !signbit(got) != !(pattern & 0x8000))
        fail_msg("%s %04x is %a", formats[f].name, pattern, (double)got);
    }
}

static void test_every_pattern_makes_the_round_trip(void **state)
{
  (void)state;
  for (int f = 0; f < LENGTH(formats); f++)
    for (int pattern = 0; pattern < 0x10000; pattern++) {
      uint16_t back = formats[f].narrow(formats[f].widen((uint16_t)pattern));
      if (back != pattern) fail_msg("%s %04x came back as %04x", formats[f].name, pattern, back);
    }
}

/* ---- Narrowing --------------------------------------------------------------------------------------------------- */

static void test_values_and_ties_round_to_the_nearest(void **state)
{
  (void)state;
  for (int f = 0; f < LENGTH(formats); f++)
    for (int pattern = 0; pattern < formats[f].infinity; pattern++) {
      format *here = &formats[f];
      uint32_t value = bits_of((float)here->value[pattern]);
      uint32_t tie = bits_of((float)((here->value[pattern] + here->value[pattern + 1]) / 2));
      for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t near = 0; near < 5; near++) {
          if (value + near >= 2) check_narrow(here, (value + near - 2) | sign << 31);
          if (tie + near >= 2) check_narrow(here, (tie + near - 2) | sign << 31);
        }
    }
}

static void test_every_exponent_rounds_to_the_nearest(void **state)
{
  (void)state;
  for (uint32_t high = 0; high < 0x10000; high++) {
    const uint32_t low[] = {0,      1,      0x7ff,  0x0fff, 0x1000, 0x1001, 0x1fff,
                            0x2000, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff};
    for (int i = 0; i < LENGTH(low); i++)
      for (int f = 0; f < LENGTH(formats); f++) check_narrow(&formats[f], high << 16 | low[i]);
  }
}

static void test_random_floats_round_to_the_nearest(void **state)
{
  (void)state;
  test_random random = {2024};
  int count = is_switched_on("SHEAF_TEST_QUICK") ? 300000 : 4000000;
  for (int i = 0; i < count; i++) {
    uint64_t bits = random_bits(&random);
    check_narrow(&formats[0], (uint32_t)bits);
    check_narrow(&formats[1], (uint32_t)bits);
    /* f16 covers a quarter of the exponents: half of the floats are taken from there. */
    check_narrow(&formats[0], (uint32_t)(bits >> 32 & 0x807fffff) | (uint32_t)(100 + bits % 45) << 23);
  }
}

static void test_all_floats_round_to_the_nearest(void **state)
{
  (void)state;
  if (!is_switched_on("SHEAF_TEST_LONG")) {
    print_message("all 2^32 floats: only with SHEAF_TEST_LONG=1\n");
    skip();
  }
  uint32_t bits = 0;
  do {
    check_narrow(&formats[0], bits);
    check_narrow(&formats[1], bits);
  } while (++bits != 0);
}

static void test_known_conversions(void **state)
{
  (void)state;
  static const struct {
    float value;
    uint16_t f16, bf16;
  } known[] = {{0.0f, 0x0000, 0x0000},        {-0.0f, 0x8000, 0x8000},           {1.0f, 0x3c00, 0x3f80},
               {-2.5f, 0xc100, 0xc020},       {65504.0f, 0x7bff, 0x4780},        {65519.996f, 0x7bff, 0x4780},
               {65520.0f, 0x7c00, 0x4780},    {0x1p-14f, 0x0400, 0x3880},        {0x1p-24f, 0x0001, 0x3380},
               {0x1p-25f, 0x0000, 0x3300},    {0x1.000002p-25f, 0x0001, 0x3300}, {0x1.8p-24f, 0x0002, 0x33c0},
               {0x1p-149f, 0x0000, 0x0000},   {0x1p-133f, 0x0000, 0x0001},       {0x1p-134f, 0x0000, 0x0000},
               {0x1.8p-133f, 0x0000, 0x0002}, {0x1.fep127f, 0x7c00, 0x7f7f},     {0x1.fffffep127f, 0x7c00, 0x7f80},
               {INFINITY, 0x7c00, 0x7f80},    {-INFINITY, 0xfc00, 0xff80}};
  for (int i = 0; i < LENGTH(known); i++) {
    assert_int_equal(sheaf_f32_to_f16(known[i].value), known[i].f16);
    assert_int_equal(sheaf_f32_to_bf16(known[i].value), known[i].bf16);
  }
  /* A NaN whose payload has no bit that fits must not become infinity. */
  assert_true((sheaf_f32_to_f16(float_of(0x7f800001)) & 0x7fff) > 0x7c00);
  assert_true((sheaf_f32_to_bf16(float_of(0xff800001)) & 0x7fff) > 0x7f80);
}

#if defined(__x86_64__)
/* Rounding mode, flush to zero and denormals are zero, all set wrong by the caller. */
static void test_conversions_do_not_depend_on_the_floating_point_mode(void **state)
{
  (void)state;
  static const float values[] = {0x1.8p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-133f,      0x1.8p-133f,
                                 1.0009f,    -1.0009f, 65520.0f,        0x1.fffffep127f};
  static const uint16_t halves[] = {0x0001, 0x03ff, 0x8001, 0x3c01, 0x0400};
  uint16_t narrowed[2][LENGTH(values)];
  uint32_t widened[2][LENGTH(halves)];
  unsigned normal = _mm_getcsr();
  for (int mode = 0; mode < 4; mode++) {
    unsigned wrong = (normal & ~0x6000u) | 0x8040u | (unsigned)mode << 13;
    for (int i = 0; i < LENGTH(values); i++) {
      narrowed[0][i] = nearest(&formats[0], values[i]);
      narrowed[1][i] = nearest(&formats[1], values[i]);
    }
    for (int i = 0; i < LENGTH(halves); i++)
      for (int f = 0; f < 2; f++) {
        double value = formats[f].value[halves[i] & 0x7fff];
        widened[f][i] = bits_of((float)(halves[i] & 0x8000 ? -value : value));
      }
    int equal = 1;
    _mm_setcsr(wrong);
    for (int i = 0; i < LENGTH(values); i++)
      for (int f = 0; f < 2; f++) equal &= formats[f].narrow(values[i]) == narrowed[f][i];
    for (int i = 0; i < LENGTH(halves); i++)
      for (int f = 0; f < 2; f++) equal &= bits_of(formats[f].widen(halves[i])) == widened[f][i];
    _mm_setcsr(normal);
    assert_true(equal);
  }
}
#endif

/* ---- Sizes and DLPack types -------------------------------------------------------------------------------------- */

static void test_bytes_of_rows(void **state)
{
  (void)state;
  static const struct {
    sheaf_dtype dtype;
    int64_t bytes; /* of an element */
  } plain[] = {{SHEAF_F32, 4}, {SHEAF_F64, 8}, {SHEAF_F16, 2}, {SHEAF_BF16, 2},
               {SHEAF_I32, 4}, {SHEAF_I64, 8}, {SHEAF_U8, 1}};
  const int64_t dims[] = {0, 1, 2, 3, 127, 128, (int64_t)1 << 40};
  for (int d = 0; d < LENGTH(dims); d++) {
    for (int i = 0; i < LENGTH(plain); i++) {
      assert_int_equal(sheaf_dtype_row_bytes(plain[i].dtype, dims[d]), plain[i].bytes * dims[d]);
      assert_int_equal(sheaf_dtype_row_bytes(plain[i].dtype, INT64_MAX), -1);
      assert_int_equal(sheaf_dtype_row_bytes(plain[i].dtype, INT64_MAX / plain[i].bytes + (plain[i].bytes > 1)), -1);
      assert_int_equal(sheaf_dtype_row_bytes(plain[i].dtype, -1), -1);
      assert_int_equal(sheaf_dtype_row_bytes(plain[i].dtype, INT64_MIN), -1);
    }
    assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT8, dims[d]), dims[d] + 8);
    assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT4, dims[d]), (dims[d] + 1) / 2 + 4);
  }
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_F64, INT64_MAX / 8), INT64_MAX / 8 * 8);
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT8, INT64_MAX), -1);
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT8, -1), -1);
  assert_int_equal(sheaf_dtype_row_bytes(SHEAF_INT4, INT64_MIN), -1);
  const int none[] = {SHEAF_DTYPE_NONE, 10, -1, 1000};
  for (int i = 0; i < LENGTH(none); i++) assert_int_equal(sheaf_dtype_row_bytes((sheaf_dtype)none[i], 4), -1);
}

static void test_dlpack_types_there_and_back(void **state)
{
  (void)state;
  static const struct {
    sheaf_dtype dtype;
    uint8_t code, bits;
  } known[] = {{SHEAF_F32, kDLFloat, 32},   {SHEAF_F64, kDLFloat, 64}, {SHEAF_F16, kDLFloat, 16},
               {SHEAF_BF16, kDLBfloat, 16}, {SHEAF_I32, kDLInt, 32},   {SHEAF_I64, kDLInt, 64},
               {SHEAF_U8, kDLUInt, 8}};
  for (int i = 0; i < LENGTH(known); i++) {
    DLDataType type = sheaf_dtype_to_dl(known[i].dtype);
    assert_true(type.code == known[i].code && type.bits == known[i].bits && type.lanes == 1);
    assert_int_equal(sheaf_dtype_from_dl(type), known[i].dtype);
  }
  const int packed[] = {SHEAF_INT8, SHEAF_INT4};
  for (int i = 0; i < 2; i++) {
    DLDataType type = sheaf_dtype_to_dl((sheaf_dtype)packed[i]);
    assert_true(type.code == kDLUInt && type.bits == 8 && type.lanes == 1);
  }
  const int none[] = {SHEAF_DTYPE_NONE, 10, -1};
  for (int i = 0; i < LENGTH(none); i++) assert_int_equal(sheaf_dtype_to_dl((sheaf_dtype)none[i]).bits, 0);
  for (int code = 0; code < 20; code++)
    for (int bits = 0; bits < 256; bits++)
      for (uint16_t lanes = 0; lanes < 3; lanes++) {
        int expected = SHEAF_DTYPE_NONE;
        for (int i = 0; i < LENGTH(known); i++)
          if (code == known[i].code && bits == known[i].bits && lanes == 1) expected = (int)known[i].dtype;
        assert_int_equal(sheaf_dtype_from_dl((DLDataType){(uint8_t)code, (uint8_t)bits, lanes}), expected);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_pattern_has_its_value),
    cmocka_unit_test(test_every_pattern_makes_the_round_trip),
    cmocka_unit_test(test_values_and_ties_round_to_the_nearest),
    cmocka_unit_test(test_every_exponent_rounds_to_the_nearest),
    cmocka_unit_test(test_random_floats_round_to_the_nearest),
    cmocka_unit_test(test_all_floats_round_to_the_nearest),
    cmocka_unit_test(test_known_conversions),
#if defined(__x86_64__)
    cmocka_unit_test(test_conversions_do_not_depend_on_the_floating_point_mode),
#endif
    cmocka_unit_test(test_bytes_of_rows),
    cmocka_unit_test(test_dlpack_types_there_and_back),
  };
  return cmocka_run_group_tests(tests, make_values, NULL);
}
