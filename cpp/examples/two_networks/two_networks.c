/* Two exported networks in one program, on one runtime.
 *
 *   two_networks CONFIG COUNT TRACE WEIGHTS1 COSTS1 WEIGHTS2 COSTS2
 *
 * COUNT inferences of each, two of each under way; then their trace. CONFIG is the JSON of
 * nns_create. CMakeLists.txt beside it links the two. */
#include <stdio.h>
#include <stdlib.h>

#include "nnstretch/nnstretch.h"

extern const nns_model* FIRST(void);
extern const nns_model* SECOND(void);

enum { NETWORKS = 2, PLACES = 2 };

typedef struct Network {
  size_t number;
  float* input;
  float* outputs[PLACES];
  nns_ticket tickets[PLACES];
} Network;

static void check(nns_status status) {
  if (status == NNS_OK) return;
  fprintf(stderr, "two_networks: %s\n", nns_last_error());
  exit(1);
}

static float* floats_of(const nns_shape* shape) {
  size_t count = 1;
  float* data;
  int axis;
  for (axis = 0; axis < shape->rank; ++axis) count *= (size_t)shape->sizes[axis];
  data = calloc(count, sizeof *data);
  if (data) return data;
  fprintf(stderr, "two_networks: no memory\n");
  exit(1);
}

static void open_network(nns_runtime* runtime, const nns_model* model, const char* weights,
                         const char* costs, Network* network) {
  nns_shape shape;
  int place;
  check(nns_open(runtime, model, weights, costs, PLACES, &network->number));
  check(nns_input(runtime, network->number, 0, &shape));
  network->input = floats_of(&shape);
  check(nns_output(runtime, network->number, 0, &shape));
  for (place = 0; place < PLACES; ++place) network->outputs[place] = floats_of(&shape);
}

static void submit(nns_runtime* runtime, Network* network, int place) {
  const float* inputs[1];
  inputs[0] = network->input;
  check(nns_submit(runtime, network->number, inputs, &network->outputs[place], NULL,
                   &network->tickets[place]));
}

int main(int count, char** words) {
  nns_runtime* runtime;
  Network networks[NETWORKS];
  long inference, inferences;
  int i, place;
  if (count != 8) {
    fprintf(stderr, "two_networks CONFIG COUNT TRACE WEIGHTS1 COSTS1 WEIGHTS2 COSTS2\n");
    return 2;
  }
  inferences = strtol(words[2], NULL, 10);
  check(nns_create(words[1], &runtime));
  open_network(runtime, FIRST(), words[4], words[5], &networks[0]);
  open_network(runtime, SECOND(), words[6], words[7], &networks[1]);
  check(nns_start(runtime));
  for (inference = 0; inference < inferences + PLACES; ++inference)
    for (i = 0; i < NETWORKS; ++i) {
      place = (int)(inference % PLACES);
      if (inference >= PLACES) check(nns_wait(runtime, networks[i].tickets[place], -1.0));
      if (inference < inferences) submit(runtime, &networks[i], place);
    }
  check(nns_write_trace(runtime, words[3]));
  nns_close(runtime);
  for (i = 0; i < NETWORKS; ++i) {
    free(networks[i].input);
    for (place = 0; place < PLACES; ++place) free(networks[i].outputs[place]);
  }
  return 0;
}
