/* cli/cmd_trace.c: `sheaf trace PART`. */
#include "cli_impl.h"
int cmd_trace(int argc, char **argv) { (void)argc; (void)argv; return CLI_FAILED; }
