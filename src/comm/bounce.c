/* comm/bounce.c: messages that lie in other memory than their engine takes: device memory over MPI, the CPU's over
 * NCCL. They are copied into a buffer of the engine's kind, which the communicator keeps, sent from there, received
 * there, and copied to where they go. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "core/memory.h"

void *shf_comm_alloc(const sheaf_comm *comm, size_t bytes)
{
  void *memory = NULL;
  if (comm->engine->memory != kDLCUDA) return shf_core_alloc_data(bytes);
  return sheaf_device_alloc((DLDevice){kDLCUDA, comm->device}, bytes, &memory) == SHEAF_OK ? memory : NULL;
}

void shf_comm_free(const sheaf_comm *comm, void *memory, size_t bytes)
{
  if (!memory) return;
  if (comm->engine->memory == kDLCUDA)
    (void)sheaf_device_free((DLDevice){kDLCUDA, comm->device}, memory);
  else
    shf_core_free_data(memory, bytes);
}

void shf_comm_free_bounce(sheaf_comm *comm)
{
  shf_comm_free(comm, comm->bounce, comm->bounce_bytes);
  comm->bounce = NULL;
  comm->bounce_bytes = 0;
}

static int64_t bytes_of(const shf_message *list, int64_t count)
{
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; i++) bytes += list[i].bytes;
  return bytes;
}

/* The ranks have agreed and wait for each other: a rank that cannot go on ends the job rather than leave them
 * waiting. */
static sheaf_status give_up(const sheaf_comm *comm, sheaf_status status)
{
  comm->engine->abandon(comm->state, sheaf_last_error());
  return status;
}

/* The same list, with its data in the buffer; sent bytes are copied there. */
static sheaf_status redirect(const shf_message *list, int64_t count, char **at, shf_message *there, int copies,
                             DLDevice device)
{
  for (int64_t i = 0; i < count; i++) {
    there[i] = (shf_message){list[i].peer, *at, list[i].bytes};
    if (copies) SHF_TRY(sheaf_device_copy(device, *at, list[i].data, (size_t)list[i].bytes, NULL));
    *at += list[i].bytes;
  }
  return SHEAF_OK;
}

static sheaf_status bounce(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                           int64_t receives, DLDevice device, shf_message *there)
{
  char *at = comm->bounce, why[SHF_COMM_TEXT] = "";
  SHF_TRY(redirect(send, sends, &at, there, 1, device));
  SHF_TRY(redirect(receive, receives, &at, there + sends, 0, device));
  SHF_TRY(sheaf_stream_wait(device, NULL));
  SHF_REQUIRE(comm->engine->exchange(comm->state, there, sends, there + sends, receives, why) == 0, COMM, "%s: %s",
              comm->engine->name, why);
  for (int64_t i = 0; i < receives; i++)
    SHF_TRY(sheaf_device_copy(device, receive[i].data, there[sends + i].data, (size_t)receive[i].bytes, NULL));
  return sheaf_stream_wait(device, NULL);
}

sheaf_status shf_comm_bounce(sheaf_comm *comm, const shf_message *send, int64_t sends, const shf_message *receive,
                             int64_t receives, DLDevice device)
{
  if (comm->engine->memory == kDLCUDA) device = (DLDevice){kDLCUDA, comm->device};
  size_t bytes = (size_t)(bytes_of(send, sends) + bytes_of(receive, receives));
  size_t list_bytes = (size_t)(sends + receives + 1) * sizeof(shf_message);
  if (bytes > comm->bounce_bytes) {
    shf_comm_free_bounce(comm);
    comm->bounce = shf_comm_alloc(comm, bytes);
    if (!comm->bounce) return give_up(comm, shf_core_no_memory("messages between ranks", bytes));
    comm->bounce_bytes = bytes;
  }
  shf_message *there = shf_core_alloc(list_bytes);
  if (!there) return give_up(comm, shf_core_no_memory("messages between ranks", list_bytes));
  sheaf_status status = bounce(comm, send, sends, receive, receives, device, there);
  shf_core_free(there, list_bytes);
  return status == SHEAF_OK ? status : give_up(comm, status);
}
