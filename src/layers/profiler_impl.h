/* profiler_impl.h: a profile as it is kept. */
#ifndef SHF_PROFILER_IMPL_H
#define SHF_PROFILER_IMPL_H

#include <sheaf/ops.h>

enum { SHF_PROFILE_PIECE = 1024, SHF_PROFILE_PIECES = 4096 };

struct sheaf_profile {
  int64_t count, lost;
  sheaf_profile_record *piece[SHF_PROFILE_PIECES];
};

#endif
