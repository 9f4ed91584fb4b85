/* Elements that a runtime has to bear, one by -DKIND: what each does wrong. */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#define SUPPORTS_NOTHING 0
#define FAILS 1
#define REFUSES_TO_PREPARE 2
#define WRONG_NUMBERS 3
#define OTHER_VERSION 4
#define NO_FUNCTION 5
#define SYMBOL_OF_ANOTHER_NAME 6
#define TYPE_OF_THE_HOST 7
#define CHANGES_ITS_MIND 8
#define FAILS_BESIDE_OTHERS 9
#if KIND == SYMBOL_OF_ANOTHER_NAME
#define nns_element_entry another_entry
#endif

#include "nnstretch/nnstretch.h"

enum { MEASURED = 30 }; /* Runs that a runtime may try before the first inference. */

static int forgetful; /* Since the first call was prepared. */

static int32_t is_relu(const nns_call* call) {
  if (forgetful) return 0;
  return call->operation == NNS_CONV2D || call->operation == NNS_ELEMENTWISE;
}

static int32_t supports_nothing(const nns_call* call) {
  (void)call;
  return 0;
}

static int32_t prepare(int32_t unit, const nns_call* call, void** prepared) {
  (void)unit;
  (void)call;
  *prepared = NULL;
  forgetful = KIND == CHANGES_ITS_MIND;
  return KIND == REFUSES_TO_PREPARE;
}

/* The first unit fails while the second still computes, which wants its input to stay. */
static int32_t fail_or_read(int32_t unit, const nns_call* call) {
  const struct timespec time = {0, unit == 0 ? 50000000 : 400000000};
  const float before = call->reads[0].data[0];
  nanosleep(&time, NULL);
  if (unit != 0 && call->reads[0].data[0] != before) abort();
  return unit == 0;
}

static int32_t run(int32_t unit, void* prepared, const nns_call* call) {
  static int runs;
  (void)prepared;
  if (KIND == FAILS_BESIDE_OTHERS) return fail_or_read(unit, call);
  if (KIND == FAILS && ++runs > MEASURED) return 1;
  if (KIND == WRONG_NUMBERS) call->write.data[0] = 1e9F;
  return 0;
}

static const char* error(int32_t unit) {
  (void)unit;
  return "the unit\nis on \x1b[31mfire";
}

const nns_element* nns_element_entry(void) {
  static const nns_element element = {
      KIND == OTHER_VERSION ? NNS_VERSION + 7 : NNS_VERSION,
      "bad",
      KIND == TYPE_OF_THE_HOST ? "cpu" : "npu",
      2,
      KIND == SUPPORTS_NOTHING ? supports_nothing : is_relu,
      prepare,
      KIND == NO_FUNCTION ? NULL : run,
      NULL,
      error,
  };
  return &element;
}
