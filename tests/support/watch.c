/* watch.c: a layer in front of every built-in one that writes down that it was visited. */
#include "watch.h"

#include <string.h>

char visits[512];
int watching;
sheaf_status watch_status;

static sheaf_status watch(const sheaf_call *call, const sheaf_frame *frame)
{
  if (watching && (call->op == SHEAF_OP_EMBEDDING || call->op == SHEAF_OP_EMBEDDING_BAG)) {
    strcat(visits, sheaf_dispatch_key_name((int)frame->key));
    strcat(visits, " ");
  }
  return sheaf_call_replaced(call, frame);
}

int watch_layers(void **state)
{
  (void)state;
  for (int key = 0; key < SHEAF_KEY_COUNT; key++) {
    if (sheaf_layer_register(SHEAF_OP_EMBEDDING, (sheaf_dispatch_key)key, watch, NULL) != SHEAF_OK) return -1;
    if (sheaf_layer_register(SHEAF_OP_EMBEDDING_BAG, (sheaf_dispatch_key)key, watch, NULL) != SHEAF_OK) return -1;
  }
  return 0;
}
