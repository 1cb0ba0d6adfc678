/* shard/agree.c: all ranks go on, or all fail with the same words. */
#include <stdio.h>
#include <string.h>

#include "shard/move.h"

/* What a failing rank tells the others: fixed size, nothing to allocate. */
typedef struct notice {
  sheaf_error_info info; /* its operand pointer means nothing elsewhere: the name travels beside it */
  char operand[32];
  char text[768];
} notice;

static shf_record *records(const sheaf_mesh *mesh) { return (shf_record *)(void *)mesh->scratch; }

shf_message *shf_mesh_messages(const sheaf_mesh *mesh, int receiving)
{
  shf_message *lists = (shf_message *)(void *)(mesh->scratch + (size_t)mesh->ranks * sizeof(shf_record));
  return lists + (receiving ? mesh->ranks : 0);
}

int64_t *shf_mesh_numbers(const sheaf_mesh *mesh, int receiving)
{
  int64_t *numbers = (int64_t *)(void *)(shf_mesh_messages(mesh, 1) + mesh->ranks);
  return numbers + (receiving ? 2 * mesh->ranks : 0);
}

const int64_t *shf_agree_facts(const sheaf_mesh *mesh, int64_t rank) { return records(mesh)[rank].facts; }

/* FNV-1a. */
static uint64_t digest_of(const char *text)
{
  uint64_t digest = 14695981039346656037u;
  for (; *text; text++) digest = (digest ^ (unsigned char)*text) * 1099511628211u;
  return digest;
}

/* The static spelling of an operand's name. */
static const char *operand_name(const char *name)
{
#define SHEAF_X(operand) \
  if (strcmp(name, #operand) == 0) return #operand;
  SHEAF_EMBEDDING_OPERAND_LIST(SHEAF_X)
  SHEAF_SEGMENT_OPERAND_LIST(SHEAF_X)
#undef SHEAF_X
  return NULL;
}

/* Collective: `who` tells all others. */
static sheaf_status tell(const sheaf_mesh *mesh, int64_t who, notice *note)
{
  shf_message *send = shf_mesh_messages(mesh, 0), receive = {who, (char *)note, sizeof *note};
  int64_t sends = 0;
  for (int64_t rank = 0; mesh->rank == who && rank < mesh->ranks; rank++)
    if (rank != who) send[sends++] = (shf_message){rank, (char *)note, sizeof *note};
  return shf_comm_exchange(mesh->comm, send, sends, &receive, mesh->rank == who ? 0 : 1, shf_host());
}

/* All ranks fail as rank `who` did. */
static sheaf_status fail_as(const sheaf_mesh *mesh, int64_t who)
{
  notice note = {0};
  if (mesh->rank == who) {
    note.info = sheaf_last_error_info();
    snprintf(note.operand, sizeof note.operand, "%s", note.info.operand ? note.info.operand : "");
    snprintf(note.text, sizeof note.text, "%s", sheaf_last_error());
    note.info.status = (sheaf_status)records(mesh)[who].status;
  }
  SHF_TRY(tell(mesh, who, &note));
  note.info.operand = operand_name(note.operand);
  if (mesh->ranks == 1) return shf_core_fail_info(&note.info, "%s", note.text);
  return shf_core_fail_info(&note.info, "rank %lld: %s", (long long)who, note.text);
}

static sheaf_status fail_different(const sheaf_mesh *mesh, int64_t who, const char *doing)
{
  notice first = {0}, other = {0};
  snprintf(first.text, sizeof first.text, "%s", doing);
  snprintf(other.text, sizeof other.text, "%s", doing);
  SHF_TRY(tell(mesh, 0, &first));
  SHF_TRY(tell(mesh, who, &other));
  return shf_core_fail(SHEAF_INVALID_PROBLEM, "ranks disagree: rank %lld calls %.400s; rank 0 calls %.400s",
                       (long long)who, other.text, first.text);
}

sheaf_status shf_agree_on(const sheaf_mesh *mesh, sheaf_status mine, const char *doing, const int64_t facts[2])
{
  shf_record record = {.status = (int32_t)mine, .digest = digest_of(doing)};
  if (facts) memcpy(record.facts, facts, sizeof record.facts);
  SHF_TRY(shf_comm_gather(mesh->comm, &record, sizeof record, records(mesh)));
  for (int64_t rank = 0; rank < mesh->ranks; rank++)
    if (records(mesh)[rank].status != SHEAF_OK) return fail_as(mesh, rank);
  for (int64_t rank = 1; rank < mesh->ranks; rank++)
    if (records(mesh)[rank].digest != records(mesh)[0].digest) return fail_different(mesh, rank, doing);
  return SHEAF_OK;
}

sheaf_status shf_agree(const sheaf_mesh *mesh, sheaf_status mine) { return shf_agree_on(mesh, mine, "", NULL); }

int shf_flow_agree_on(shf_flow *flow, const char *doing, const int64_t facts[2])
{
  if (flow->settled) return 0;
  flow->status = shf_agree_on(flow->mesh, flow->status, doing, facts);
  flow->settled = flow->status != SHEAF_OK;
  flow->pending = 0;
  return !flow->settled;
}

int shf_flow_agree(shf_flow *flow) { return shf_flow_agree_on(flow, "", NULL); }

void shf_flow_wait(shf_flow *flow, DLDevice device)
{
  if (flow->settled || shf_is_host(device)) return;
  FLOW(flow, shf_space_wait(device));
}

int shf_flow_settle(shf_flow *flow) { return flow->pending ? shf_flow_agree(flow) : flow->status == SHEAF_OK; }
