/* core/status.h: how errors are raised and passed on inside Sheaf. */
#ifndef SHF_CORE_STATUS_H
#define SHF_CORE_STATUS_H

#include <sheaf/base.h>

/* Records a sentence for this thread and returns `status`. The plain form clears the numbers of sheaf_error_info; the
 * other keeps those given (info->status is set for the caller). */
sheaf_status shf_core_fail(sheaf_status status, const char *format, ...) __attribute__((cold, format(printf, 2, 3)));
sheaf_status shf_core_fail_info(const sheaf_error_info *info, const char *format, ...)
    __attribute__((cold, format(printf, 2, 3)));

/* SHF_REQUIRE(condition, STATUS, "format", ...): returns from the calling function when the condition does not hold.
 * (The status is spelled twice so that compilers see that it is not OK.) */
#define SHF_REQUIRE(condition, status, ...)          \
  do {                                               \
    if (__builtin_expect(!(condition), 0)) {         \
      shf_core_fail(SHEAF_##status, __VA_ARGS__);    \
      return SHEAF_##status;                         \
    }                                                \
  } while (0)

/* SHF_TRY(call): returns its status from the calling function unless it is OK. */
#define SHF_TRY(call)                                                   \
  do {                                                                  \
    sheaf_status try_status = (call);                                   \
    if (__builtin_expect(try_status != SHEAF_OK, 0)) return try_status; \
  } while (0)

#endif
