/* profiler_export.c: a profile as records, as a Chrome trace, as a table. */
#include <inttypes.h>
#include <string.h>

#include "layers/profiler_impl.h"
#include "layers/text_out.h"

int64_t sheaf_profile_count(const sheaf_profile *profile) { return profile ? profile->count : 0; }
int64_t sheaf_profile_lost(const sheaf_profile *profile) { return profile ? profile->lost : 0; }

const sheaf_profile_record *sheaf_profile_at(const sheaf_profile *profile, int64_t position)
{
  if (!profile || position < 0 || position >= profile->count) return NULL;
  return &profile->piece[position / SHF_PROFILE_PIECE][position % SHF_PROFILE_PIECE];
}

static void put_shapes(shf_text *text, const sheaf_profile_record *r)
{
  for (int i = 0; i < r->shapes; i++) {
    if (i) shf_text_put(text, " ");
    if (r->shape[i].rank < 0)
      shf_text_put(text, "-");
    else
      shf_text_shape(text, r->shape[i].rank < 3 ? r->shape[i].rank : 3, r->shape[i].extent);
  }
}

/* One complete event ("ph": "X") per record; times in microseconds, as the format has them. */
static void put_event(shf_text *text, const sheaf_profile_record *r)
{
  shf_text_put(text, "{\"name\": ");
  shf_text_quoted(text, r->op);
  shf_text_put(text,
               ", \"cat\": \"op\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %" PRId64 ".%03d, \"dur\": %" PRId64
               ".%03d, \"args\": {\"shapes\": \"",
               r->thread, r->start_ns / 1000, (int)(r->start_ns % 1000), r->host_ns / 1000, (int)(r->host_ns % 1000));
  put_shapes(text, r);
  shf_text_put(text,
               "\", \"dtype\": \"%s\", \"sku\": \"%s\", \"bytes\": %" PRId64 ", \"plan_runs\": %" PRId64
               ", \"device_ns\": %" PRId64 ", \"status\": \"%s\"}}",
               sheaf_dtype_name(r->dtype), r->sku, r->bytes, r->plan_runs, r->device_ns, sheaf_status_name(r->status));
}

size_t sheaf_profile_chrome(const sheaf_profile *profile, char *text, size_t room)
{
  shf_text out = shf_text_into(text, room);
  shf_text_put(&out, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
  for (int64_t i = 0; i < sheaf_profile_count(profile); i++) {
    shf_text_put(&out, i ? ",\n" : "\n");
    put_event(&out, sheaf_profile_at(profile, i));
  }
  shf_text_put(&out, "\n]}\n");
  return out.used;
}

enum { MOST_LINES = 64 };

typedef struct line {
  const sheaf_profile_record *first;
  int64_t calls, ns, device_ns, bytes;
} line;

size_t sheaf_profile_table(const sheaf_profile *profile, char *text, size_t room)
{
  shf_text out = shf_text_into(text, room);
  line lines[MOST_LINES];
  int count = 0;
  for (int64_t i = 0; i < sheaf_profile_count(profile); i++) {
    const sheaf_profile_record *r = sheaf_profile_at(profile, i);
    int at = 0;
    while (at < count && (strcmp(lines[at].first->op, r->op) != 0 || strcmp(lines[at].first->sku, r->sku) != 0)) at++;
    if (at == MOST_LINES) at = MOST_LINES - 1; /* more kernels than lines: the last line has the rest */
    if (at == count) lines[count++] = (line){.first = r};
    lines[at].calls++;
    lines[at].ns += r->host_ns;
    lines[at].bytes += r->bytes;
    lines[at].device_ns += r->device_ns;
  }
  shf_text_put(&out, "%-26s %-40s %10s %12s %12s %12s %10s\n", "op", "last kernel", "calls", "total us", "ns a call",
               "device us", "GB/s");
  for (int i = 0; i < count; i++) {
    const line *l = &lines[i];
    int64_t ns = l->device_ns ? l->device_ns : l->ns; /* of whatever did the work */
    shf_text_put(&out, "%-26s %-40s %10" PRId64 " %12.1f %12.0f %12.1f %10.2f\n", l->first->op,
                 l->first->sku[0] ? l->first->sku : "-", l->calls, (double)l->ns / 1e3,
                 (double)l->ns / (double)l->calls, (double)l->device_ns / 1e3,
                 ns ? (double)l->bytes / (double)ns : 0.0);
  }
  return out.used;
}
