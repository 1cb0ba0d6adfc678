/* cli/shard_profile.c: `sheaf shard profile`: what moving costs between these ranks, for the planner. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* clock_gettime */
#endif
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli_impl.h"
#include "json_out.h"
#include "shard_cli.h"

static const char command[] = "shard profile";
enum { REPEATS = 9 };

static double now_us(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median time of gathering a tensor that is cut over all ranks, `bytes` of it on each; below 0 on failure. */
static double time_gather(sheaf_mesh *mesh, int64_t bytes)
{
  sheaf_dtensor_desc desc = SHEAF_DTENSOR_DESC_INIT;
  sheaf_placement whole = sheaf_replicate();
  double times[REPEATS];
  sheaf_dtensor *cut;
  desc.mesh = mesh;
  desc.dtype = SHEAF_F32;
  desc.rank = 1;
  desc.shape[0] = bytes / 4 * sheaf_mesh_ranks(mesh);
  desc.placements[0] = sheaf_shard(0);
  if (sheaf_dtensor_create(&desc, &cut) != SHEAF_OK) return -1;
  for (int i = -1; i < REPEATS; i++) { /* the first one does not count */
    sheaf_dtensor *moved;
    double start = now_us();
    if (sheaf_dtensor_redistribute(cut, &whole, &moved) != SHEAF_OK) {
      sheaf_dtensor_free(cut);
      return -1;
    }
    if (i >= 0) times[i] = now_us() - start;
    sheaf_dtensor_free(moved);
  }
  sheaf_dtensor_free(cut);
  qsort(times, REPEATS, sizeof *times, by_value);
  return times[REPEATS / 2];
}

/* GB/s of copying between two buffers, counted once for reading and once for writing; below 0 without memory. */
static double copy_speed(size_t bytes)
{
  char *a = malloc(bytes), *b = malloc(bytes);
  double times[REPEATS];
  void *(*volatile copy)(void *, const void *, size_t) = memcpy; /* a compiler that sees through it copies nothing */
  if (a) memset(a, 1, bytes); /* pages that were never written are all the same one */
  for (int i = -1; a && b && i < REPEATS; i++) {
    double start = now_us();
    copy(b, a, bytes);
    if (i >= 0) times[i] = now_us() - start;
  }
  int fits = a && b;
  free(a);
  free(b);
  if (!fits) return -1;
  qsort(times, REPEATS, sizeof *times, by_value);
  return 2 * (double)bytes / times[REPEATS / 2] / 1e3;
}

/* What --json prints and --save stores: the same object. */
static json_t *to_json(const sheaf_mesh_profile *p, int64_t ranks)
{
  return json_pack("{s:I, s:f, s:f, s:f}", "ranks", (json_int_t)ranks, "latency_us", p->latency_us, "bandwidth_gbs",
                   p->bandwidth_gbs, "memory_gbs", p->memory_gbs);
}

static int save(const char *path, const sheaf_mesh_profile *p, int64_t ranks)
{
  json_t *root = to_json(p, ranks);
  int failed = !root || json_dump_file(root, path, JSON_INDENT(2)) != 0;
  json_decref(root);
  if (failed) cli_complain(command, "'%s' cannot be written", path);
  return failed ? CLI_FAILED : CLI_OK;
}

static int measure(sheaf_comm *comm, int64_t bytes, const char *path, int json)
{
  int64_t ranks = sheaf_comm_size(comm);
  sheaf_mesh *mesh;
  sheaf_mesh_profile p = SHEAF_MESH_PROFILE_INIT;
  if (sheaf_mesh_create(&ranks, 1, comm, &mesh) != SHEAF_OK) {
    cli_complain(command, "%s", sheaf_last_error());
    return CLI_FAILED;
  }
  double small = time_gather(mesh, 64), large = time_gather(mesh, bytes);
  p.memory_gbs = copy_speed((size_t)bytes);
  sheaf_mesh_free(mesh);
  if (small < 0 || large < 0 || p.memory_gbs < 0) {
    cli_complain(command, "%s", small < 0 || large < 0 ? sheaf_last_error() : "out of memory");
    return CLI_FAILED;
  }
  double peers = ranks > 1 ? (double)(ranks - 1) : 1;
  p.latency_us = small / peers;
  p.bandwidth_gbs = ranks > 1 ? peers * (double)bytes / (large > small ? large - small : large) / 1e3 : p.memory_gbs;
  if (sheaf_comm_rank(comm) != 0) return CLI_OK;
  if (json) {
    int code = cli_print_json(command, to_json(&p, ranks));
    return path && code == CLI_OK ? save(path, &p, ranks) : code;
  }
  printf("%lld ranks\nlatency    %9.2f us a message, agreement included\nbandwidth  %9.2f GB/s received by a rank\n"
         "memory     %9.2f GB/s read and written by a rank\n",
         (long long)ranks, p.latency_us, p.bandwidth_gbs, p.memory_gbs);
  return path ? save(path, &p, ranks) : CLI_OK;
}

int shard_profile(int argc, char **argv)
{
  const char *path = NULL, *engine = "mpi", *megabytes = "32";
  int json = 0;
  const cli_option options[] = {{"--save", CLI_TEXT, &path},
                                {"--engine", CLI_TEXT, &engine},
                                {"--megabytes", CLI_TEXT, &megabytes},
                                {"--json", CLI_FLAG, &json}};
  const cli_syntax syntax = {command, options, sizeof options / sizeof *options, NULL, 0};
  int code = cli_parse(&syntax, argc, argv);
  if (code != CLI_GO_ON) return code;
  int64_t size;
  if (shard_read_extents(megabytes, &size, 1) != 1 || size < 1 || size > 4096)
    return cli_misused(command, "--megabytes takes a number from 1 to 4096, not '%s'", megabytes);
  sheaf_comm *comm;
  if (sheaf_comm_open(engine, NULL, &comm) != SHEAF_OK) {
    cli_complain(command, "%s", sheaf_last_error());
    return CLI_FAILED;
  }
  code = measure(comm, size << 20, path, json);
  sheaf_comm_close(comm);
  return code;
}
