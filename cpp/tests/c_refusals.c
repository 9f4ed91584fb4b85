/* What the C interface refuses, from C99: configurations, pointers that are NULL, tensors that are none. */
#include <math.h>

#include "expect.h"

const nns_model* MODEL(void);

static void expect_null(nns_status status, const char* what) {
  char words[64];
  snprintf(words, sizeof words, "%s is NULL", what);
  expect_refused(status, NNS_BAD_INPUT, words);
}

static void refusals(void) {
  nns_runtime* runtime = NULL;
  const char* cases[][2] = {
      {"{\"polcy\": \"eft\"}", "unknown key \"polcy\", the closest is policy"},
      {"{\"policy\": \"heft\"}", "unknown policy heft, the closest is eft"},
      {"{\"policy\": \"xyz\"}", "unknown policy xyz, there are rr, met"},
      {"{\"policy\": 5}", "configuration, policy, it is a name"},
      {"{\"kernels\": \"\"}", "configuration, kernels, it is a name"},
      {"{\"elements\": [\"gpu\"]}", "unknown element gpu"},
      {"{\"elements\": [\"library:/nowhere.so\"]}", "cannot be opened"},
      {"{\"elements\": [\"linked:none\"]}", "no element none is linked in"},
      {"{\"elements\": []}", "there are none"},
      {"{\"elements\": \"cpu\"}", "configuration, elements, they are a list"},
      {"{\"elements\": [\"cpu:4095\"]}", "there is no such core for this process"},
      {"{\"priorities\": 0}", "a whole number from 1 to 64"},
      {"{\"priorities\": 1.5}", "a whole number from 1 to 64"},
      {"{\"priorities\": +1}", "this is no number"},
      {"{\"priorities\": 1e999}", "the number is too large"},
      {"{\"policy\": \"eft\", \"policy\": \"rr\"}", "key \"policy\" is there twice"},
      {"{\"policy\": \"\\u0065ft\\u00e9\"}", "unknown policy eft\xc3\xa9, there are rr"},
      {"\xef\xbb\xbf{}", "it begins with a byte order mark"},
      {"", "configuration, it is empty"},
      {"{\"trace_spans\": -1}", "trace_spans, it is a whole number from 0 to 10000000"},
      {"[1]", "this is no object"},
      {"{", "text in quotes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_refused(nns_create(cases[i][0], &runtime), NNS_BAD_INPUT, cases[i][1]);
  nns_close(NULL);
}

/* Every pointer of the interface that may not be NULL. */
static void nulls(const char* weights) {
  nns_runtime* runtime = NULL;
  nns_session* session = NULL;
  nns_shape shape;
  nns_call call = {0};
  size_t count = 0;
  const nns_ticket ticket = {0, 1};
  const nns_tensor none = nns_absent();
  EXPECT(nns_create(NULL, &runtime) == NNS_OK);
  const nns_model* model = MODEL();
  const float* in[1] = {NULL};
  float* out[1] = {NULL};
  nns_ticket submitted;
  EXPECT(nns_open(runtime, model, weights, NULL, 1, &count) == NNS_OK);
  EXPECT(nns_session_open(runtime, NULL, 1, &session) == NNS_OK);
  EXPECT(nns_counts(runtime, 0, NULL, NULL) == NNS_OK);
  EXPECT(nns_start(runtime) == NNS_OK);
  expect_null(nns_create(NULL, NULL), "runtime");
  expect_null(nns_open(NULL, model, weights, NULL, 1, &count), "runtime");
  expect_null(nns_open(runtime, NULL, weights, NULL, 1, &count), "model");
  expect_null(nns_open(runtime, model, NULL, NULL, 1, &count), "weights");
  expect_null(nns_open(runtime, model, weights, NULL, 1, NULL), "network");
  expect_null(nns_open_memory(NULL, model, &count, 8, NULL, 1, &count), "runtime");
  expect_null(nns_open_memory(runtime, NULL, &count, 8, NULL, 1, &count), "model");
  expect_null(nns_open_memory(runtime, model, NULL, SIZE_MAX, NULL, 1, &count), "weights");
  expect_null(nns_open_memory(runtime, model, &count, 8, NULL, 1, NULL), "network");
  expect_null(nns_start(NULL), "runtime");
  expect_null(nns_counts(NULL, 0, &count, &count), "runtime");
  expect_null(nns_input(NULL, 0, 0, &shape), "runtime");
  expect_null(nns_input(runtime, 0, 0, NULL), "shape");
  expect_null(nns_output(NULL, 0, 0, &shape), "runtime");
  expect_null(nns_output(runtime, 0, 0, NULL), "shape");
  expect_null(nns_run(NULL, 0, in, out, NULL), "runtime");
  expect_null(nns_run(runtime, 0, NULL, out, NULL), "inputs");
  expect_null(nns_run(runtime, 0, in, NULL, NULL), "outputs");
  expect_null(nns_run(runtime, 0, in, out, NULL), "an input");
  expect_null(nns_submit(runtime, 0, in, out, NULL, NULL), "ticket");
  expect_null(nns_submit(NULL, 0, in, out, NULL, &submitted), "runtime");
  expect_null(nns_wait(NULL, ticket, 0.0), "runtime");
  expect_null(nns_poll(NULL, ticket), "runtime");
  expect_null(nns_cancel(NULL, ticket), "runtime");
  expect_null(nns_write_trace(NULL, "t.json"), "runtime");
  expect_null(nns_write_trace(runtime, NULL), "path");
  expect_null(nns_link_element(NULL), "element");
  expect_null(nns_session_open(NULL, NULL, 1, &session), "runtime");
  expect_null(nns_session_open(runtime, NULL, 1, NULL), "session");
  expect_null(nns_enqueue(NULL, &call, NULL), "session");
  expect_null(nns_enqueue(session, NULL, NULL), "call");
  expect_null(nns_session_wait(NULL, 1, 0.0), "session");
  expect_null(nns_session_finish(NULL), "session");
  expect_null(nns_conv2d(NULL, NULL, none, none, none, none, none, NULL), "session");
  expect_null(nns_conv1d(NULL, NULL, none, none, none, none, NULL), "session");
  expect_null(nns_gemm(NULL, NULL, none, none, none, none, none, NULL), "session");
  expect_null(nns_elementwise(NULL, NULL, none, none, none, NULL), "session");
  expect_null(nns_activation(NULL, NULL, none, none, NULL), "session");
  expect_null(nns_pool2d(NULL, NULL, none, none, NULL), "session");
  expect_null(nns_norm(NULL, NULL, none, none, none, none, NULL), "session");
  expect_null(nns_softmax(NULL, NULL, none, none, NULL), "session");
  expect_null(nns_resize2d(NULL, NULL, none, none, NULL), "session");
  expect_null(nns_copy(NULL, none, none, NULL), "session");
  expect_refused(nns_gemm(session, NULL, none, none, none, none, none, NULL), NNS_BAD_INPUT, "it writes nothing");
  expect_refused(nns_cancel(runtime, ticket), NNS_BAD_INPUT, "this is no ticket");
  expect_refused(nns_wait(runtime, ticket, 0.0), NNS_BAD_INPUT, "this is no ticket");
  nns_close(runtime);
}

/* Tensors that are none: no call reads or measures them. */
static void tensors(void) {
  nns_runtime* runtime = NULL;
  nns_session* session = NULL;
  float x[4] = {1, 2, 3, 4};
  const int64_t sizes[3][2] = {{2, -2}, {INT64_MAX, INT64_MAX}, {0, 2}};
  const int64_t two[2] = {2, 2};
  const nns_tensor sound = nns_dense(x, 2, two);
  EXPECT(nns_create(NULL, &runtime) == NNS_OK);
  EXPECT(nns_session_open(runtime, NULL, 4, &session) == NNS_OK);
  EXPECT(nns_start(runtime) == NNS_OK);
  expect_refused(nns_copy(session, nns_dense(x, 2, NULL), sound, NULL), NNS_BAD_INPUT, "has no rank");
  expect_refused(nns_copy(session, nns_dense(x, -1, two), sound, NULL), NNS_BAD_INPUT, "has no rank");
  expect_refused(nns_copy(session, nns_dense(x, 9, two), sound, NULL), NNS_BAD_INPUT, "has no rank");
  for (int i = 0; i < 3; ++i)
    expect_refused(nns_copy(session, nns_dense(x, 2, sizes[i]), sound, NULL), NNS_BAD_INPUT, "has no rank");
  EXPECT(nns_copy(session, nns_dense(x, 0, NULL), nns_dense(x, 0, NULL), NULL) == NNS_OK);
  nns_tensor huge = sound, shared = sound;
  for (int axis = 0; axis < 2; ++axis) huge.sizes[axis] = huge.strides[axis] = (int64_t)1 << 31;
  expect_refused(nns_copy(session, huge, huge, NULL), NNS_BAD_INPUT, "larger than any memory");
  shared.strides[0] = shared.strides[1] = 0;
  expect_refused(nns_copy(session, sound, shared, NULL), NNS_BAD_INPUT, "share memory");
  nns_tensor far = sound;
  far.strides[0] = (int64_t)1 << 31;
  far.sizes[0] = (int64_t)1 << 16;
  nns_tensor from = far;
  expect_refused(nns_copy(session, from, far, NULL), NNS_NO_MEMORY, "no memory for");
  uint64_t ticket = 0;
  EXPECT(nns_copy(session, sound, sound, &ticket) == NNS_OK);
  expect_refused(nns_session_wait(session, ticket, (double)NAN), NNS_BAD_INPUT, "no number");
  EXPECT(nns_session_wait(session, ticket, -1.0) == NNS_OK);
  nns_close(runtime);
}

int main(int count, char** words) {
  if (count != 2) return 2;
  refusals();
  nulls(words[1]);
  tensors();
  puts("ok");
  return 0;
}
