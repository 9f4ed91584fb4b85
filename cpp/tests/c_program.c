/* The C interface from C99: a network by its handle, and layer calls. */
#include <math.h>

#include "expect.h"

const nns_model* MODEL(void);

static int32_t nothing(const nns_call* call) { return call->operation == 99; }

static int32_t idle(int32_t unit, void* prepared, const nns_call* call) {
  (void)prepared;
  return unit + (int32_t)call->reads_count;
}

static void linked(const char* weights) {
  static nns_element element = {NNS_VERSION, "lazy", "npu", 1, nothing, NULL, idle, NULL, NULL};
  static const nns_element twin = {NNS_VERSION, "lazy", "npu", 1, nothing, NULL, idle, NULL, NULL};
  static const nns_element old = {NNS_VERSION + 1, "old", "npu", 1, nothing, NULL, idle, NULL, NULL};
  nns_runtime* runtime = NULL;
  size_t network = 0;
  expect_refused(nns_link_element(&old), NNS_BAD_INPUT, "of version 2");
  EXPECT(nns_link_element(&element) == NNS_OK && nns_link_element(&element) == NNS_OK);
  expect_refused(nns_link_element(&twin), NNS_BAD_INPUT, "another one is linked in by this name");
  expect_refused(nns_create("{\"elements\": [\"linked:lazy\", \"linked:lazy\"]}", &runtime), NNS_BAD_INPUT, "it has 1 units");
  EXPECT(nns_create("{\"elements\": [\"cpu\", \"linked:lazy\"]}", &runtime) == NNS_OK);
  expect_refused(nns_open(runtime, MODEL(), weights, NULL, 1, &network), NNS_BAD_INPUT, "element npu1 can run no task");
  nns_close(runtime);
}

static void inferences(const char* weights, const char* trace) {
  nns_runtime* runtime = NULL;
  size_t network = 0, inputs = 0, outputs = 0;
  EXPECT(nns_create("{\"elements\": [\"cpu\", \"cpu\"], \"priorities\": 2, \"trace_spans\": 1000}", &runtime) == NNS_OK);
  expect_refused(nns_open(runtime, MODEL(), "/nowhere", NULL, 2, &network), NNS_BAD_INPUT, "cannot be opened");
  expect_refused(nns_open(runtime, MODEL(), weights, NULL, 0, &network), NNS_BAD_INPUT, "places are 0");
  EXPECT(nns_open(runtime, MODEL(), weights, NULL, 2, &network) == NNS_OK);
  EXPECT(nns_counts(runtime, network, &inputs, &outputs) == NNS_OK && inputs == 1 && outputs == 1);
  nns_shape in, out;
  EXPECT(nns_input(runtime, network, 0, &in) == NNS_OK && in.rank == 4 && in.sizes[1] == 3);
  EXPECT(nns_output(runtime, network, 0, &out) == NNS_OK);
  expect_refused(nns_input(runtime, network, 1, &in), NNS_BAD_INPUT, "there is no port 1");
  expect_refused(nns_counts(runtime, 7, NULL, NULL), NNS_BAD_INPUT, "there is no network 7");
  size_t in_count = 1, out_count = 1;
  for (int i = 0; i < in.rank; ++i) in_count *= (size_t)in.sizes[i];
  for (int i = 0; i < out.rank; ++i) out_count *= (size_t)out.sizes[i];
  float* x = malloc(in_count * sizeof *x);
  float* y = malloc(3 * out_count * sizeof *y);
  for (size_t i = 0; i < in_count; ++i) x[i] = (float)(i % 17) / 17.0F;
  const float* in_pointers[1] = {x};
  float* out_pointers[1] = {y};
  expect_refused(nns_run(runtime, network, in_pointers, out_pointers, NULL), NNS_CLOSED, "not started");
  EXPECT(nns_start(runtime) == NNS_OK);
  expect_refused(nns_start(runtime), NNS_BAD_INPUT, "started before");
  EXPECT(nns_run(runtime, network, in_pointers, out_pointers, NULL) == NNS_OK);
  nns_ticket tickets[3];
  const nns_request urgent = {NNS_NEVER, 1}, late = {0.0, 0}, never = {-2.0, 0}, nan = {(double)NAN, 0}, wrong = {NNS_NEVER, 2};
  for (int i = 0; i < 2; ++i) {
    float* to[1] = {y + (size_t)(i + 1) * out_count};
    EXPECT(nns_submit(runtime, network, in_pointers, to, &urgent, &tickets[i]) == NNS_OK);
  }
  float* to[1] = {y};
  expect_refused(nns_submit(runtime, network, in_pointers, to, NULL, &tickets[2]), NNS_QUEUE_FULL, "all 2 places");
  while (nns_poll(runtime, tickets[0]) == NNS_NOT_YET) continue;
  EXPECT(nns_wait(runtime, tickets[1], -1.0) == NNS_OK);
  expect_refused(nns_wait(runtime, tickets[1], -1.0), NNS_BAD_INPUT, "waited for before");
  for (int i = 1; i < 3; ++i)
    EXPECT(memcmp(y, y + (size_t)i * out_count, out_count * sizeof *y) == 0);
  expect_refused(nns_run(runtime, network, in_pointers, to, &wrong), NNS_BAD_INPUT, "priority 2");
  expect_refused(nns_run(runtime, network, in_pointers, to, &never), NNS_BAD_INPUT, "no time from now on");
  expect_refused(nns_run(runtime, network, in_pointers, to, &nan), NNS_BAD_INPUT, "no time from now on");
  expect_refused(nns_run(runtime, network, in_pointers, to, &late), NNS_TOO_LATE, "deadline");
  EXPECT(nns_submit(runtime, network, in_pointers, to, NULL, &tickets[0]) == NNS_OK);
  expect_refused(nns_wait(runtime, tickets[0], (double)NAN), NNS_BAD_INPUT, "no number");
  EXPECT(nns_cancel(runtime, tickets[0]) == NNS_OK);
  const nns_status status = nns_wait(runtime, tickets[0], -1.0);
  EXPECT(status == NNS_CANCELLED || status == NNS_OK);
  expect_refused(nns_write_trace(runtime, "/nowhere/t.json"), NNS_BAD_INPUT, "cannot be written");
  EXPECT(nns_write_trace(runtime, trace) == NNS_OK);
  EXPECT(nns_submit(runtime, network, in_pointers, to, NULL, &tickets[0]) == NNS_OK);
  nns_close(runtime); /* with work in flight */
  free(x);
  free(y);
}

/* One network twice: the trace tells them apart. */
static void twins(const char* weights, const char* trace) {
  nns_runtime* runtime = NULL;
  size_t networks[2];
  EXPECT(nns_create("{\"trace_spans\": 100}", &runtime) == NNS_OK);
  for (int i = 0; i < 2; ++i)
    EXPECT(nns_open(runtime, MODEL(), weights, NULL, 1, &networks[i]) == NNS_OK);
  EXPECT(nns_start(runtime) == NNS_OK);
  float* x = calloc(3 * 9 * 9, sizeof *x);
  float y[5];
  const float* in[1] = {x};
  float* out[1] = {y};
  for (int i = 0; i < 2; ++i) EXPECT(nns_run(runtime, networks[i], in, out, NULL) == NNS_OK);
  EXPECT(nns_write_trace(runtime, trace) == NNS_OK);
  nns_close(runtime);
  free(x);
}

static nns_tensor matrix(float* data, int64_t rows, int64_t columns) {
  const int64_t sizes[2] = {rows, columns};
  return nns_dense(data, 2, sizes);
}

static void layers(void) {
  enum { SIDE = 8, STEPS = 200 };
  nns_runtime* runtime = NULL;
  nns_session* session = NULL;
  EXPECT(nns_create("{\"elements\": [\"cpu\", \"cpu\"]}", &runtime) == NNS_OK);
  EXPECT(nns_session_open(runtime, NULL, 32, &session) == NNS_OK);
  EXPECT(nns_start(runtime) == NNS_OK);
  float a[SIDE * SIDE], b[SIDE * SIDE], eye[SIDE * SIDE] = {0};
  for (int i = 0; i < SIDE * SIDE; ++i) a[i] = (float)i;
  for (int i = 0; i < SIDE; ++i) eye[i * SIDE + i] = 1.0F;
  nns_attributes plus = nns_defaults();
  plus.arithmetic = NNS_ADD;
  uint64_t ticket = 0;
  /* b = a I, a = b + I, ...: each reads what the one before wrote, and writes what that read. */
  for (int step = 0; step < STEPS; ++step) {
    nns_status status = NNS_QUEUE_FULL;
    while (status == NNS_QUEUE_FULL)
      status = nns_gemm(session, NULL, matrix(a, SIDE, SIDE), matrix(eye, SIDE, SIDE), nns_absent(),
                        nns_absent(), matrix(b, SIDE, SIDE), &ticket);
    EXPECT(status == NNS_OK);
    EXPECT(nns_elementwise(session, &plus, matrix(b, SIDE, SIDE), matrix(eye, SIDE, SIDE),
                           matrix(a, SIDE, SIDE), NULL) == NNS_OK);
  }
  EXPECT(nns_session_wait(session, ticket, -1.0) == NNS_OK);
  EXPECT(nns_session_finish(session) == NNS_OK);
  EXPECT(a[0] == (float)STEPS && a[1] == 1.0F && a[SIDE + 1] == (float)(SIDE + 1 + STEPS));

  float x[1 * 2 * 4 * 4], weight[2 * 2 * 3 * 3], y[1 * 2 * 4 * 4], half[1 * 2 * 2 * 2];
  for (int i = 0; i < 32; ++i) x[i] = 1.0F;
  for (int i = 0; i < 36; ++i) weight[i] = 1.0F;
  const int64_t x_sizes[4] = {1, 2, 4, 4}, w_sizes[4] = {2, 2, 3, 3}, half_sizes[4] = {1, 2, 2, 2};
  nns_attributes conv = nns_defaults();
  for (int i = 0; i < 4; ++i) conv.padding[i] = 1;
  const nns_tensor tx = nns_dense(x, 4, x_sizes), ty = nns_dense(y, 4, x_sizes);
  const nns_tensor tw = nns_dense(weight, 4, w_sizes), th = nns_dense(half, 4, half_sizes);
  EXPECT(nns_conv2d(session, &conv, tx, tw, nns_absent(), nns_absent(), ty, &ticket) == NNS_OK);
  nns_attributes pool = nns_defaults();
  pool.window[0] = pool.window[1] = pool.stride[0] = pool.stride[1] = 2;
  EXPECT(nns_pool2d(session, &pool, ty, th, NULL) == NNS_OK);
  EXPECT(y[0] == 8.0F && y[5] == 18.0F && half[0] == 18.0F);
  nns_attributes resize = nns_defaults();
  resize.ratio[0] = resize.ratio[1] = 0.5F;
  EXPECT(nns_resize2d(session, &resize, th, ty, NULL) == NNS_OK && y[31] == half[7]);
  nns_attributes relu = nns_defaults();
  relu.function = NNS_NEGATE;
  EXPECT(nns_activation(session, &relu, th, th, NULL) == NNS_OK && half[0] == -18.0F);
  EXPECT(nns_softmax(session, NULL, th, th, NULL) == NNS_OK && half[0] == 0.5F);
  EXPECT(nns_copy(session, th, th, NULL) == NNS_OK);
  EXPECT(nns_norm(session, NULL, tx, nns_absent(), nns_absent(), ty, NULL) == NNS_OK);
  EXPECT(fabsf(y[0]) < 1e-3F);
  float line[6] = {1, 2, 3, 4, 5, 6}, taps[2] = {1, 1}, sums[5];
  const int64_t l_sizes[3] = {1, 1, 6}, t_sizes[3] = {1, 1, 2}, s_sizes[3] = {1, 1, 5};
  EXPECT(nns_conv1d(session, NULL, nns_dense(line, 3, l_sizes), nns_dense(taps, 3, t_sizes),
                    nns_absent(), nns_dense(sums, 3, s_sizes), NULL) == NNS_OK);
  EXPECT(sums[0] == 3.0F && sums[4] == 11.0F);

  expect_refused(nns_conv2d(session, &conv, tx, tw, nns_absent(), nns_absent(), th, NULL), NNS_BAD_INPUT, "another size");
  conv.groups = INT64_MAX; /* times the channels of a group it is no number */
  expect_refused(nns_conv2d(session, &conv, tx, tw, nns_absent(), nns_absent(), ty, NULL), NNS_BAD_INPUT, "do not fit");
  expect_refused(nns_gemm(session, NULL, matrix(a, 8, 8), matrix(b, 4, 16), nns_absent(), nns_absent(), matrix(b, 8, 8), NULL), NNS_BAD_INPUT, "do not fit");
  expect_refused(nns_copy(session, nns_absent(), th, NULL), NNS_BAD_INPUT, "input 0 is absent");
  expect_refused(nns_copy(session, th, ty, NULL), NNS_BAD_INPUT, "another shape");
  nns_call call = {0};
  call.operation = 99;
  call.write = th;
  expect_refused(nns_enqueue(session, &call, NULL), NNS_BAD_INPUT, "operation 99");
  expect_refused(nns_session_wait(session, 1000000, 0.0), NNS_BAD_INPUT, "no ticket");
  nns_close(runtime);
}

int main(int count, char** words) {
  if (count != 4) return 2;
  linked(words[1]);
  inferences(words[1], words[2]);
  layers();
  twins(words[1], words[3]);
  puts("ok");
  return 0;
}
