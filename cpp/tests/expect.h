/* What programs of tests expect of the C interface; the first thing that is otherwise ends them. */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nnstretch/nnstretch.h"

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, nns_last_error()); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

static inline void expect_refused(nns_status status, nns_status expected, const char* words) {
  if (status == expected && strstr(nns_last_error(), words) != NULL) return;
  fprintf(stderr, "status %d, expected %d with '%s': %s\n", (int)status, (int)expected, words,
          nns_last_error());
  exit(1);
}

#endif
