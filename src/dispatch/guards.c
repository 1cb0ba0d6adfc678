/* guards.c: what a thread includes in, and excludes from, the key sets of its calls. */
#include <sheaf/ops.h>

#include "dispatch/dispatch_impl.h"

_Thread_local shf_thread_state shf_thread;
atomic_uint shf_everywhere;

sheaf_status sheaf_guard_begin(sheaf_keyset include, sheaf_keyset exclude, sheaf_guard *guard)
{
  SHF_REQUIRE(guard, INVALID_PROBLEM, "sheaf_guard_begin: guard is NULL");
  guard->include = shf_thread.include;
  guard->exclude = shf_thread.exclude;
  guard->depth = ++shf_thread.guards;
  shf_thread.include = sheaf_keyset_difference(sheaf_keyset_union(shf_thread.include, include), exclude);
  shf_thread.exclude = sheaf_keyset_difference(sheaf_keyset_union(shf_thread.exclude, exclude), include);
  return SHEAF_OK;
}

sheaf_status sheaf_guard_end(const sheaf_guard *guard)
{
  SHF_REQUIRE(guard, INVALID_PROBLEM, "sheaf_guard_end: guard is NULL");
  SHF_REQUIRE(shf_thread.guards > 0, INVALID_PROBLEM, "a guard is ended, but none has begun on this thread");
  SHF_REQUIRE(guard->depth == shf_thread.guards, INVALID_PROBLEM,
              "guard %u is ended, but guard %u is the one that was begun last on this thread", guard->depth,
              shf_thread.guards);
  SHF_REQUIRE(guard->depth > shf_thread.floor, INVALID_PROBLEM,
              "guard %u is ended within a kernel, but was begun outside of it", guard->depth);
  shf_thread.include = guard->include;
  shf_thread.exclude = guard->exclude;
  shf_thread.guards--;
  return SHEAF_OK;
}

sheaf_keyset sheaf_included_keys(void)
{
  return sheaf_keyset_from(shf_thread.include.bits | atomic_load_explicit(&shf_everywhere, memory_order_relaxed));
}

sheaf_keyset sheaf_excluded_keys(void) { return shf_thread.exclude; }

sheaf_status sheaf_no_grad_begin(sheaf_guard *guard)
{
  return sheaf_guard_begin(sheaf_keyset_empty(), sheaf_keyset_of(SHEAF_KEY_AUTOGRAD), guard);
}

sheaf_status sheaf_no_grad_end(const sheaf_guard *guard) { return sheaf_guard_end(guard); }
