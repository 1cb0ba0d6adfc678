/* cli/cmd_shard.c: `sheaf shard PART`, and how meshes and placements are written on a command line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_impl.h"
#include "json_out.h"
#include "shard_cli.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} parts[] = {{"plan", shard_plan}, {"verify", shard_verify}, {"profile", shard_profile}};

int cmd_shard(int argc, char **argv)
{
  if (argc < 2) return cli_misused("shard", "no part is named");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    cli_print_command_help(cli_find_command("shard"), stdout);
    return CLI_OK;
  }
  const char *names[CLI_LENGTH(parts)];
  for (int i = 0; i < CLI_LENGTH(parts); i++) {
    if (strcmp(argv[1], parts[i].name) == 0) return parts[i].run(argc - 1, argv + 1);
    names[i] = parts[i].name;
  }
  return cli_unknown("shard", argv[1][0] == '-' ? "option" : "part", argv[1], names, CLI_LENGTH(parts));
}

int shard_read_extents(const char *text, int64_t *extents, int room)
{
  const double most = 70368744177664.0; /* 2^46, the largest extent of a plan */
  for (int count = 0; count < room;) {
    char word[32], *end; /* one number, up to the x: "0x4" is a zero and a four, not hexadecimal */
    size_t length = strcspn(text, "x");
    if (length == 0 || length >= sizeof word || !(*text >= '0' && *text <= '9')) return 0;
    memcpy(word, text, length);
    word[length] = 0;
    double value = strtod(word, &end);
    if (*end || !(value >= 0) || value > most || value != floor(value)) return 0;
    extents[count++] = (int64_t)value;
    if (text[length] == 0) return count;
    text += length + 1;
  }
  return 0;
}

int shard_read_placements(const char *text, sheaf_placement *placements, int dims)
{
  for (int m = 0; m < dims; m++) {
    char word[16];
    size_t length = strcspn(text, ",");
    if (length >= sizeof word) return 0;
    memcpy(word, text, length);
    word[length] = 0;
    if (sheaf_placement_parse(word, &placements[m]) != SHEAF_OK) return 0;
    text += length;
    if (*text == ',')
      text++;
    else if (m + 1 < dims)
      return 0;
  }
  return *text == 0;
}

const char *shard_print_placements(const sheaf_placement *placements, int dims, char text[SHARD_TEXT])
{
  size_t at = 0;
  text[0] = 0;
  for (int m = 0; m < dims && at + 16 < SHARD_TEXT; m++) {
    if (m) at += (size_t)snprintf(text + at, SHARD_TEXT - at, ", ");
    at += sheaf_placement_print(&placements[m], text + at, SHARD_TEXT - at);
  }
  return text;
}

int shard_read_profile(const char *path, sheaf_mesh_profile *profile)
{
  json_t *root = cli_read_json("shard", path);
  if (!root) return 0;
  profile->latency_us = json_number_value(json_object_get(root, "latency_us"));
  profile->bandwidth_gbs = json_number_value(json_object_get(root, "bandwidth_gbs"));
  profile->memory_gbs = json_number_value(json_object_get(root, "memory_gbs"));
  json_decref(root);
  if (profile->latency_us > 0 && profile->bandwidth_gbs > 0 && profile->memory_gbs > 0) return 1;
  cli_complain("shard", "'%s' is no profile: latency_us, bandwidth_gbs and memory_gbs must be numbers above 0", path);
  return 0;
}
