/* See Weft.Test.Capabilities. */
#include "Rts.h"

void weft_test_set_capabilities(uint32_t n) {
  rts_setInCallCapability(0, 0);
  setNumCapabilities(n);
  rts_setInCallCapability(-1, 0);
}
