/* cli/shard_cli.h: what the parts of `sheaf shard` share. */
#ifndef SHEAF_SHARD_CLI_H
#define SHEAF_SHARD_CLI_H

#include <sheaf/sheaf.h>

/* The parts: argv[0] is the part's name. */
int shard_verify(int argc, char **argv);
int shard_plan(int argc, char **argv);
int shard_profile(int argc, char **argv);

/* "2x4": positive numbers, also written as 1e9. Returns how many, 0 when it is anything else. */
int shard_read_extents(const char *text, int64_t *extents, int room);

/* "S0,R": one placement per mesh dimension, of `dims`; 0 when it is anything else. */
int shard_read_placements(const char *text, sheaf_placement *placements, int dims);

/* "S(0), R" */
enum { SHARD_TEXT = 96 };
const char *shard_print_placements(const sheaf_placement *placements, int dims, char text[SHARD_TEXT]);

/* Reads what `sheaf shard profile` wrote; 0 when it cannot, having said why. */
int shard_read_profile(const char *path, sheaf_mesh_profile *profile);

#endif
