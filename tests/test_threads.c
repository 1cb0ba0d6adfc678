/* test_threads.c: one plan in many threads, inside OpenMP regions, and on both sides of a fork: always the same bits.
 *
 * Every run here is split among all the threads it may use, however small it is (support/environment.h). The tests that
 * fork before anything has used threads come first.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/call.h"
#include "support/environment.h"
#include "support/problem_run.h"

/* The thread sanitizer has a thread of its own. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
enum { SANITIZER_TASKS = 1 };
#else
enum { SANITIZER_TASKS = 0 };
#endif
#else
enum { SANITIZER_TASKS = 0 };
#endif

enum { THREADS = 16, LONGEST_CHILD = 120 /* seconds; a child that takes longer hangs */ };

/* A problem with its plan, what its outputs should be, and outputs for each of some threads. */
typedef struct shared_plan {
  problem *p;
  problem_outputs *expected, *got[THREADS];
  sheaf_plan *plan;
  void *workspace[THREADS];
  size_t workspace_bytes;
} shared_plan;

/* Large enough that long bags, hot rows and segments are cut among threads. */
static problem_spec large_spec(int kind)
{
  problem_spec spec = call_spec(kind);
  spec.count = is_switched_on("SHEAF_TEST_QUICK") ? 3000 : 20000;
  spec.dim = 17;
  spec.rows = 50;
  spec.bags = 40;
  spec.longest_bag = spec.count / 2;
  spec.hot_count = spec.count / 3;
  spec.spread = SPREAD_HOT;
  spec.want_report = true;
  return spec;
}

static shared_plan shared_make(int kind, int threads)
{
  shared_plan s = {.p = NULL};
  problem_spec spec = large_spec(kind);
  problem_way way = {.threads = threads};
  s.p = problem_make(&spec);
  s.expected = problem_outputs_make(s.p);
  problem_expect(s.p, s.expected);
  assert_int_equal(problem_select(s.p, &way, false, &s.plan), SHEAF_OK);
  s.workspace_bytes = sheaf_plan_workspace_size(s.plan);
  for (int t = 0; t < THREADS; t++) {
    s.got[t] = problem_outputs_make(s.p);
    s.workspace[t] = aligned_alloc(64, (s.workspace_bytes + 127) / 64 * 64);
    assert_non_null(s.workspace[t]);
  }
  return s;
}

static void shared_free(shared_plan *s)
{
  for (int t = 0; t < THREADS; t++) {
    problem_outputs_free(s->got[t]);
    free(s->workspace[t]);
  }
  sheaf_plan_free(s->plan);
  problem_outputs_free(s->expected);
  problem_free(s->p);
}

/* Runs the plan into the outputs of thread t, allocating nothing; whether they are as expected. */
static bool run_shared(shared_plan *s, int t)
{
  sheaf_status status;
  problem_outputs_reset(s->p, s->got[t]);
  if (s->p->spec.category == SHEAF_CATEGORY_EMBEDDING) {
    sheaf_embedding_args args = problem_embedding_args(s->p, s->got[t]);
    status = sheaf_embedding_run(s->plan, s->workspace[t], s->workspace_bytes, NULL, &args);
  } else {
    sheaf_segment_args args = problem_segment_args(s->p, s->got[t]);
    status = sheaf_segment_run(s->plan, s->workspace[t], s->workspace_bytes, NULL, &args);
  }
  if (status != SHEAF_OK) fprintf(stderr, "%s\n", sheaf_last_error());
  return status == SHEAF_OK && problem_outputs_equal(s->p, s->expected, s->got[t], "threads");
}

/* ---- Threads of the caller --------------------------------------------------------------------------------------- */

typedef struct worker {
  pthread_t thread;
  shared_plan *shared;
  pthread_barrier_t *start;
  int number, runs;
  bool good;
} worker;

static void *work(void *context)
{
  worker *w = context;
  w->good = true;
  pthread_barrier_wait(w->start);
  for (int i = 0; i < w->runs; i++) w->good &= run_shared(w->shared, w->number);
  return NULL;
}

/* Whether THREADS threads that run one plan at the same time all get what they should. */
static bool run_in_threads(shared_plan *s, int runs)
{
  worker workers[THREADS];
  pthread_barrier_t start;
  bool good = true;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int t = 0; t < THREADS; t++) {
    workers[t] = (worker){.shared = s, .start = &start, .number = t, .runs = runs};
    if (pthread_create(&workers[t].thread, NULL, work, &workers[t]) != 0) abort();
  }
  for (int t = 0; t < THREADS; t++) {
    pthread_join(workers[t].thread, NULL);
    good &= workers[t].good;
  }
  pthread_barrier_destroy(&start);
  return good;
}

static void test_one_plan_is_shared_by_16_threads(void **state)
{
  (void)state;
  for (int kind = 0; kind < CALL_KINDS; kind++) {
    shared_plan s = shared_make(kind, 1);
    assert_true(run_in_threads(&s, 3));
    shared_free(&s);
  }
}

static void test_one_plan_of_several_threads_is_shared_by_16_threads(void **state)
{
  (void)state;
  static const int kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_MEAN, SHEAF_BAG_MEAN_BACKWARD, 8 + SHEAF_UNSORTED_SEGMENT_MAX};
  for (int i = 0; i < LENGTH(kinds); i++) {
    shared_plan s = shared_make(kinds[i], 3);
    assert_true(run_in_threads(&s, 2));
    shared_free(&s);
  }
}

/* ---- Errors of threads ------------------------------------------------------------------------------------------- */

static void *fail_in_own_words(void *context)
{
  worker *w = context;
  char text[32];
  snprintf(text, sizeof text, "rows -%d,", 1000 + w->number);
  w->good = strcmp(sheaf_last_error(), "") == 0 && sheaf_last_error_info().status == SHEAF_OK &&
            sheaf_last_error_info().position == -1;
  pthread_barrier_wait(w->start);
  for (int i = 0; i < 200; i++) {
    sheaf_embedding_desc desc = embedding_of(SHEAF_LOOKUP);
    sheaf_plan *plan;
    desc.rows = -1000 - w->number;
    w->good &= sheaf_embedding_select(&desc, NULL, &plan) == SHEAF_INVALID_PROBLEM;
    w->good &= strstr(sheaf_last_error(), text) != NULL;
  }
  return NULL;
}

static void test_last_error_belongs_to_its_thread(void **state)
{
  (void)state;
  sheaf_embedding_desc desc = embedding_of(SHEAF_LOOKUP);
  desc.rows = -77;
  refuses_embedding(&desc, NULL, INVALID_PROBLEM, "rows -77,");
  worker workers[THREADS];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int t = 0; t < THREADS; t++) {
    workers[t] = (worker){.start = &start, .number = t};
    assert_int_equal(pthread_create(&workers[t].thread, NULL, fail_in_own_words, &workers[t]), 0);
  }
  for (int t = 0; t < THREADS; t++) {
    pthread_join(workers[t].thread, NULL);
    assert_true(workers[t].good);
  }
  pthread_barrier_destroy(&start);
  assert_non_null(strstr(sheaf_last_error(), "rows -77,"));
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

static void test_limits_of_threads(void **state)
{
  (void)state;
  assert_int_equal(sheaf_threads(), omp_get_max_threads() < 256 ? omp_get_max_threads() : 256);
  const int values[] = {1, 2, 5, 256};
  for (int i = 0; i < LENGTH(values); i++) {
    assert_int_equal(sheaf_set_threads(values[i]), SHEAF_OK);
    assert_int_equal(sheaf_threads(), values[i]);
  }
  const int negative[] = {-1, INT32_MIN};
  for (int i = 0; i < LENGTH(negative); i++) {
    check_refusal(sheaf_set_threads(negative[i]), NULL, SHEAF_INVALID_PROBLEM, WORDS(number(negative[i])), __LINE__);
    assert_int_equal(sheaf_threads(), 256);
  }
  assert_int_equal(sheaf_set_threads(INT32_MAX), SHEAF_OK);
  assert_int_equal(sheaf_threads(), 256);
  assert_int_equal(sheaf_set_threads(0), SHEAF_OK);
  assert_int_equal(sheaf_threads(), omp_get_max_threads() < 256 ? omp_get_max_threads() : 256);
}

static void test_results_do_not_depend_on_the_limit(void **state)
{
  (void)state;
  static const int limits[] = {1, 2, 3, 7, 16};
  for (int i = 0; i < LENGTH(limits); i++) {
    assert_int_equal(sheaf_set_threads(limits[i]), SHEAF_OK);
    shared_plan s = shared_make(SHEAF_BAG_SUM_BACKWARD, 0);
    assert_true(run_shared(&s, 0));
    shared_free(&s);
  }
  assert_int_equal(sheaf_set_threads(0), SHEAF_OK);
}

/* ---- Inside OpenMP ----------------------------------------------------------------------------------------------- */

static void test_plans_run_inside_openmp_regions(void **state)
{
  (void)state;
  static const int kinds[] = {SHEAF_BAG_SUM, SHEAF_LOOKUP_BACKWARD, 8 + SHEAF_SEGMENT_PROD};
  for (int levels = 1; levels <= 2; levels++)
    for (int i = 0; i < LENGTH(kinds); i++) {
      shared_plan s = shared_make(kinds[i], 3);
      bool good[4] = {false, false, false, false};
      int before = omp_get_max_active_levels();
      omp_set_max_active_levels(levels); /* 1: regions within regions have one thread */
#pragma omp parallel num_threads(4)
      for (int t = omp_get_thread_num(); t < 4; t += omp_get_num_threads()) good[t] = run_shared(&s, t);
      omp_set_max_active_levels(before);
      for (int t = 0; t < 4; t++) assert_true(good[t]);
      shared_free(&s);
    }
}

/* ---- Forks ------------------------------------------------------------------------------------------------------- */

/* Runs `task` in a child; whether it returned true in time. */
static bool in_child(bool (*task)(void *), void *context)
{
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_CHILD);
    _exit(task(context) ? 0 : 1);
  }
  int status = -1;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status))
    print_error("the child ended by signal %d%s\n", WTERMSIG(status), WTERMSIG(status) == SIGALRM ? ": it hung" : "");
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run_first(void *context) { return run_shared(context, 0); }

static bool run_twice_and_fork_again(void *context)
{
  return run_shared(context, 0) && run_shared(context, 1) && in_child(run_first, context);
}

static bool select_and_run(void *context)
{
  shared_plan *parent = context;
  shared_plan own = *parent;
  problem_way way = {.threads = 4};
  if (problem_select(own.p, &way, false, &own.plan) != SHEAF_OK) return false;
  bool good = run_shared(&own, 0);
  sheaf_plan_free(own.plan);
  return good;
}

/* A child has one thread until it says that it may have more. */
static bool ask_for_threads(void *context)
{
  if (sheaf_threads() != 1) return false;
  if (sheaf_set_threads(0) != SHEAF_OK || sheaf_threads() != 1) return false;
  if (sheaf_set_threads(3) != SHEAF_OK || sheaf_threads() != 3) return false;
  return run_shared(context, 0) && select_and_run(context);
}

static int tasks_of_process(void)
{
  int tasks = 0;
  DIR *folder = opendir("/proc/self/task");
  if (!folder) return -1;
  for (struct dirent *entry; (entry = readdir(folder));) tasks += entry->d_name[0] != '.';
  closedir(folder);
  return tasks;
}

/* A plan for one thread starts no other; one for three starts two. */
static bool count_tasks(void *context)
{
  shared_plan *plans = context;
  int before = tasks_of_process();
  if (before < 1) return true;                        /* no /proc */
  if (sheaf_set_threads(8) != SHEAF_OK) return false; /* this child may: nothing has used threads before it */
  if (!run_shared(&plans[0], 0) || tasks_of_process() > before + SANITIZER_TASKS) return false;
  if (!run_shared(&plans[1], 0)) return false;
  int after = tasks_of_process();
  if (after <= before || after > before + 2 + SANITIZER_TASKS) fprintf(stderr, "%d tasks, then %d\n", before, after);
  return after > before && after <= before + 2 + SANITIZER_TASKS;
}

static void test_a_plan_starts_no_more_threads_than_it_may(void **state)
{
  (void)state;
  shared_plan plans[] = {shared_make(SHEAF_BAG_MEAN_BACKWARD, 1), shared_make(SHEAF_BAG_MEAN_BACKWARD, 3)};
  assert_true(in_child(count_tasks, plans));
  shared_free(&plans[0]);
  shared_free(&plans[1]);
}

static void test_fork_before_first_use(void **state)
{
  (void)state;
  shared_plan s = shared_make(SHEAF_BAG_SUM_BACKWARD, 4);
  assert_true(in_child(run_twice_and_fork_again, &s));
  assert_true(in_child(select_and_run, &s));
  assert_true(in_child(ask_for_threads, &s));
  shared_free(&s);
}

static void test_fork_after_first_use(void **state)
{
  (void)state;
  static const int kinds[] = {SHEAF_LOOKUP, SHEAF_BAG_MEAN_BACKWARD, 8 + SHEAF_SEGMENT_SUM,
                              8 + SHEAF_UNSORTED_SEGMENT_PROD_BACKWARD};
  for (int i = 0; i < LENGTH(kinds); i++) {
    shared_plan s = shared_make(kinds[i], 4);
    assert_true(run_shared(&s, 0)); /* now there are threads that no child has */
    assert_true(in_child(run_twice_and_fork_again, &s));
    assert_true(in_child(select_and_run, &s));
    assert_true(run_shared(&s, 0)); /* and the parent still has them */
    shared_free(&s);
  }
}

static bool run_in_16_threads(void *context) { return run_in_threads(context, 1); }

static void test_fork_after_first_use_and_threads_of_the_child(void **state)
{
  (void)state;
  shared_plan s = shared_make(SHEAF_BAG_MEAN_BACKWARD, 2);
  assert_true(run_shared(&s, 0));
  assert_true(in_child(run_in_16_threads, &s));
  shared_free(&s);
}

static void *run_until_told(void *context)
{
  worker *w = context;
  pthread_barrier_wait(w->start);
  for (int i = 0; i < w->runs; i++) w->good &= run_shared(w->shared, w->number);
  return NULL;
}

/* The child is born while other threads are in the middle of runs. */
static void test_fork_while_other_threads_run(void **state)
{
  (void)state;
  enum { OTHERS = 3 };
  shared_plan s = shared_make(SHEAF_BAG_SUM_BACKWARD, 2);
  worker workers[OTHERS];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, OTHERS + 1);
  for (int t = 0; t < OTHERS; t++) {
    workers[t] = (worker){.shared = &s, .start = &start, .number = t + 1, .runs = 20, .good = true};
    assert_int_equal(pthread_create(&workers[t].thread, NULL, run_until_told, &workers[t]), 0);
  }
  pthread_barrier_wait(&start);
  bool good = true;
  for (int i = 0; i < 3; i++) good &= in_child(run_first, &s);
  for (int t = 0; t < OTHERS; t++) {
    pthread_join(workers[t].thread, NULL);
    good &= workers[t].good;
  }
  pthread_barrier_destroy(&start);
  assert_true(good);
  shared_free(&s);
}

int main(int argc, char **argv)
{
  (void)argc;
  environment_prepare(argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fork_before_first_use),
      cmocka_unit_test(test_a_plan_starts_no_more_threads_than_it_may),
      cmocka_unit_test(test_last_error_belongs_to_its_thread),
      cmocka_unit_test(test_one_plan_is_shared_by_16_threads),
      cmocka_unit_test(test_one_plan_of_several_threads_is_shared_by_16_threads),
      cmocka_unit_test(test_limits_of_threads),
      cmocka_unit_test(test_results_do_not_depend_on_the_limit),
      cmocka_unit_test(test_plans_run_inside_openmp_regions),
      cmocka_unit_test(test_fork_after_first_use),
      cmocka_unit_test(test_fork_after_first_use_and_threads_of_the_child),
      cmocka_unit_test(test_fork_while_other_threads_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
