/* place.c: memory, streams and clocks on devices other than the CPU, as the ops use them: the one place above the plans
 * that calls plug-ins. A thread's work on a device goes in the order of its current stream there. */
#include <pthread.h>

#include "core/device_api.h"
#include "dispatch/dispatch_impl.h"

enum { MOST_DEVICES = 16, WORKSPACES = 4 };

/* A workspace belongs to one stream: what runs on another one may run at the same time. */
typedef struct workspace {
  DLDevice device;
  void *stream, *memory;
  size_t bytes;
  unsigned long used; /* when, for the one to be given up */
} workspace;

static _Thread_local struct {
  void *stream[MOST_DEVICES];
  workspace workspaces[WORKSPACES];
  unsigned long uses;
  DLDevice clock_device;
  void *clock[2]; /* events of clock_device; NULL: none yet */
  int watched;    /* freed when the thread ends */
} mine;

/* Devices that have given memory, as bits. */
static atomic_uint used_devices;

static sheaf_status find_api(DLDevice device, const shf_device_api **api)
{
  const char *why;
  *api = shf_core_device_api((int)device.device_type, &why);
  SHF_REQUIRE(*api, UNAVAILABLE, "CUDA device %d needs the plug-in libsheaf_cuda.so: %s", device.device_id, why);
  return SHEAF_OK;
}

static int same_device(DLDevice a, DLDevice b) { return a.device_type == b.device_type && a.device_id == b.device_id; }

/* ---- Streams ---- */

static int has_place(DLDevice device) { return device.device_id >= 0 && device.device_id < MOST_DEVICES; }

sheaf_status sheaf_stream_use(DLDevice device, void *stream)
{
  int type = (int)device.device_type;
  SHF_REQUIRE(type == kDLCUDA || type == kDLCUDAManaged, INVALID_PROBLEM,
              "device type %d has no streams; CUDA devices (2) have", type);
  SHF_REQUIRE(has_place(device), INVALID_PROBLEM, "a stream of CUDA device %d: devices 0 to %d can have one",
              device.device_id, MOST_DEVICES - 1);
  mine.stream[device.device_id] = stream;
  return SHEAF_OK;
}

void *sheaf_stream_current(DLDevice device) { return has_place(device) ? mine.stream[device.device_id] : NULL; }

/* ---- The end of a thread ---- */

static void give_up(workspace *w)
{
  if (w->memory) sheaf_device_free(w->device, w->memory);
  *w = (workspace){.memory = NULL};
}

static pthread_key_t ending;
static int ending_made;

static void drop_clock(void)
{
  for (int i = 0; i < 2; i++) {
    if (mine.clock[i]) sheaf_event_free(mine.clock_device, mine.clock[i]);
    mine.clock[i] = NULL;
  }
}

static void clear_own(void)
{
  for (int i = 0; i < WORKSPACES; i++) give_up(&mine.workspaces[i]);
  drop_clock();
}

static void at_end(void *unused)
{
  (void)unused;
  clear_own();
}

static void __attribute__((constructor)) make_ending(void) { ending_made = pthread_key_create(&ending, at_end) == 0; }

static void watch(void)
{
  if (!mine.watched && ending_made) mine.watched = pthread_setspecific(ending, &mine) == 0;
}

/* ---- Memory ---- */

sheaf_status shf_place_alloc(DLDevice device, size_t bytes, void **memory)
{
  const shf_device_api *api;
  int devices;
  *memory = NULL;
  SHF_TRY(find_api(device, &api));
  SHF_TRY(api->count(&devices));
  SHF_REQUIRE(device.device_id >= 0 && device.device_id < devices, UNAVAILABLE,
              "there is no CUDA device %d; there are %d", device.device_id, devices);
  if (bytes == 0) return SHEAF_OK;
  if (has_place(device)) atomic_fetch_or_explicit(&used_devices, 1u << device.device_id, memory_order_relaxed);
  return api->pool_allocate(device.device_id, bytes, sheaf_stream_current(device), memory);
}

void shf_place_free(DLDevice device, void *memory, int handed_out)
{
  const shf_device_api *api;
  if (!memory || find_api(device, &api) != SHEAF_OK) return;
  if (handed_out) /* others may have used it on any stream */
    api->release(device.device_id, memory);
  else
    api->pool_release(device.device_id, memory, sheaf_stream_current(device));
}

sheaf_status shf_place_workspace(DLDevice device, size_t bytes, void **memory)
{
  void *stream = sheaf_stream_current(device);
  workspace *found = NULL, *oldest = &mine.workspaces[0];
  for (int i = 0; i < WORKSPACES && !found; i++) {
    workspace *w = &mine.workspaces[i];
    if (w->memory && w->stream == stream && same_device(w->device, device)) found = w;
    if (w->used < oldest->used) oldest = w;
  }
  if (!found || found->bytes < bytes) {
    if (!found) found = oldest;
    give_up(found);
    SHF_TRY(sheaf_device_alloc(device, bytes, &found->memory));
    found->device = device;
    found->stream = stream;
    found->bytes = bytes;
    watch();
  }
  found->used = ++mine.uses;
  *memory = found->memory;
  return SHEAF_OK;
}

void shf_place_clear(void)
{
  clear_own();
  const shf_device_api *api;
  unsigned used = atomic_load_explicit(&used_devices, memory_order_relaxed);
  for (int i = 0; i < MOST_DEVICES; i++)
    if ((used >> i & 1) && find_api((DLDevice){kDLCUDA, i}, &api) == SHEAF_OK) api->pool_trim(i);
}

/* ---- Work on the thread's stream ---- */

sheaf_status shf_place_copy(DLDevice device, void *to, const void *from, size_t bytes)
{
  if (bytes == 0) return SHEAF_OK;
  void *stream = sheaf_stream_current(device);
  SHF_TRY(sheaf_device_copy(device, to, from, bytes, stream));
  return sheaf_stream_wait(device, stream);
}

sheaf_status shf_place_fill(DLDevice device, void *memory, int value, size_t bytes)
{
  return sheaf_device_fill(device, memory, value, bytes, sheaf_stream_current(device));
}

sheaf_status shf_place_map(DLDevice device, struct shf_device_map *map)
{
  const shf_device_api *api;
  SHF_TRY(find_api(device, &api));
  map->device = device.device_id;
  map->stream = sheaf_stream_current(device);
  SHF_TRY(shf_place_clock_start(device));
  SHF_TRY(api->map(map));
  return shf_place_clock_stop(device);
}

sheaf_status shf_place_count_rows(DLDevice device, struct shf_device_rows *rows)
{
  const shf_device_api *api;
  SHF_TRY(find_api(device, &api));
  rows->device = device.device_id;
  rows->stream = sheaf_stream_current(device);
  return api->count_rows(rows);
}

sheaf_status shf_place_number_rows(DLDevice device, struct shf_device_rows *rows)
{
  const shf_device_api *api;
  SHF_TRY(find_api(device, &api));
  return api->number_rows(rows);
}

/* ---- The time of profiled work ---- */

sheaf_status shf_place_clock_start(DLDevice device)
{
  if (!shf_thread.tally) return SHEAF_OK;
  if (!same_device(mine.clock_device, device)) drop_clock();
  mine.clock_device = device;
  for (int i = 0; i < 2; i++)
    if (!mine.clock[i]) SHF_TRY(sheaf_event_make(device, &mine.clock[i]));
  watch();
  return sheaf_event_record(device, mine.clock[0], sheaf_stream_current(device));
}

sheaf_status shf_place_clock_stop(DLDevice device)
{
  double seconds = 0;
  if (!shf_thread.tally) return SHEAF_OK;
  SHF_TRY(sheaf_event_record(device, mine.clock[1], sheaf_stream_current(device)));
  SHF_TRY(sheaf_stream_wait(device, sheaf_stream_current(device)));
  SHF_TRY(sheaf_event_elapsed(device, mine.clock[0], mine.clock[1], &seconds));
  shf_thread.tally->device_ns += (int64_t)(seconds * 1e9 + 0.5);
  return SHEAF_OK;
}
