/* 06_profile_and_trace.c: what calls cost, as a table and as a trace for Perfetto; and calls recorded as a graph, which
 * runs again on other inputs. Files are written where the program is started, when it is given a folder for them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sheaf/sheaf.h>

enum { ROWS = 500, DIM = 16, ENTRIES = 64, SEGMENTS = 4 };

static void must(sheaf_status status)
{
  if (status == SHEAF_OK) return;
  fprintf(stderr, "%s: %s\n", sheaf_status_name(status), sheaf_last_error());
  exit(1);
}

static sheaf_tensor *new_tensor(sheaf_dtype dtype, int rank, const int64_t *shape)
{
  sheaf_tensor *t;
  must(sheaf_tensor_new(dtype, rank, shape, &t));
  return t;
}

/* Rows looked up, then averaged by segment. */
static sheaf_tensor *compute(sheaf_tensor *table, sheaf_tensor *indices, sheaf_tensor *ids)
{
  sheaf_tensor *rows = NULL, *means = NULL;
  must(sheaf_embedding(indices, table, NULL, &rows));
  must(sheaf_segment_reduce(rows, SHEAF_REDUCE_MEAN, ids, SEGMENTS, NULL, &means));
  sheaf_tensor_release(rows);
  return means;
}

static void save(const char *folder, const char *name, const char *text)
{
  char path[1024];
  if (!folder) return;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
    fprintf(stderr, "%s could not be written\n", path);
    exit(1);
  }
  printf("wrote %s\n", path);
}

int main(int argc, char **argv)
{
  const char *folder = argc > 1 ? argv[1] : NULL;
  sheaf_tensor *table = new_tensor(SHEAF_F32, 2, (int64_t[]){ROWS, DIM});
  sheaf_tensor *indices = new_tensor(SHEAF_I64, 1, (int64_t[]){ENTRIES}),
               *ids = new_tensor(SHEAF_I64, 1, (int64_t[]){ENTRIES});
  for (int i = 0; i < ROWS * DIM; i++) ((float *)sheaf_tensor_data(table))[i] = (float)i;
  for (int i = 0; i < ENTRIES; i++) {
    ((int64_t *)sheaf_tensor_data(indices))[i] = i * 37 % ROWS;
    ((int64_t *)sheaf_tensor_data(ids))[i] = i * SEGMENTS / ENTRIES;
  }

  /* The profile: all calls of all threads between begin and end. */
  sheaf_profile *profile;
  must(sheaf_profiler_begin());
  for (int i = 0; i < 100; i++) sheaf_tensor_release(compute(table, indices, ids));
  must(sheaf_profiler_end(&profile));
  size_t length = sheaf_profile_chrome(profile, NULL, 0);
  char *chrome = malloc(length + 1), text[2048];
  if (!chrome) return 1;
  sheaf_profile_chrome(profile, chrome, length + 1);
  sheaf_profile_table(profile, text, sizeof text);
  printf("%lld calls were recorded\n%s\n", (long long)sheaf_profile_count(profile), text);
  save(folder, "profile.json", chrome);
  int wrong = sheaf_profile_count(profile) != 200 || !strstr(chrome, "\"traceEvents\"");
  free(chrome);
  sheaf_profile_free(profile);

  /* The trace: the calls of this thread, as a graph. */
  sheaf_trace *graph, *read;
  must(sheaf_tracer_begin());
  sheaf_tensor_release(compute(table, indices, ids));
  must(sheaf_tracer_end(&graph));
  sheaf_trace_text(graph, text, sizeof text);
  printf("%s\n", text);
  sheaf_trace_dot(graph, text, sizeof text);
  save(folder, "graph.dot", text);
  sheaf_trace_json(graph, text, sizeof text);
  save(folder, "graph.json", text);

  /* Read back and run on other indices: the same as computing anew. */
  must(sheaf_trace_from_json(text, &read));
  for (int i = 0; i < ENTRIES; i++) ((int64_t *)sheaf_tensor_data(indices))[i] = i * 91 % ROWS;
  sheaf_tensor_written(indices);
  sheaf_tensor *inputs[] = {table, indices, ids}, *replayed = NULL, *expected = compute(table, indices, ids);
  must(sheaf_trace_replay(read, inputs, 3, &replayed, 1));
  wrong += memcmp(sheaf_tensor_data(replayed), sheaf_tensor_data(expected), sizeof(float) * SEGMENTS * DIM) != 0;
  printf("replayed on other indices: mean of the first segment's first column %g\n",
         (double)((float *)sheaf_tensor_data(replayed))[0]);

  sheaf_tensor *all[] = {table, indices, ids, replayed, expected};
  for (int i = 0; i < 5; i++) sheaf_tensor_release(all[i]);
  sheaf_trace_free(graph);
  sheaf_trace_free(read);
  puts(wrong ? "WRONG" : "as expected");
  return wrong != 0;
}
