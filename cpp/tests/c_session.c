/* Layer calls from C99: which element takes one, what fails with which, and whose memory is whose.
 *
 *   c_session COSTS      COSTS: a file that is written */
#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <pthread.h>

#include "expect.h"

enum { SIDE = 4, CELLS = SIDE * SIDE, UNLUCKY = 13, TURNS = 500 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int gate_is_open;

static void set_gate(int open) {
  pthread_mutex_lock(&mutex);
  gate_is_open = open;
  pthread_cond_broadcast(&opened);
  pthread_mutex_unlock(&mutex);
}

/* Products of tensors without gaps, without anything behind them. */
static int32_t supports_product(const nns_call* call) {
  return call->operation == NNS_MATMUL && call->reads_count >= 2 && call->reads[2].rank == 0 &&
         call->reads[3].rank == 0 && call->attributes.function == NNS_IDENTITY &&
         call->attributes.scale == 1.0F && call->reads[0].strides[1] == 1 &&
         call->reads[1].strides[1] == 1;
}

static int products; /* That the element computed. */

static int32_t multiply(int32_t unit, void* prepared, const nns_call* call) {
  const float *a = call->reads[0].data, *b = call->reads[1].data;
  (void)unit;
  (void)prepared;
  ++products;
  for (int i = 0; i < CELLS; ++i) {
    call->write.data[i] = 0.0F;
    for (int k = 0; k < SIDE; ++k)
      call->write.data[i] += a[i / SIDE * SIDE + k] * b[k * SIDE + i % SIDE];
  }
  return 0;
}

static int32_t supports_scalar(const nns_call* call) { return call->operation == NNS_SCALAR; }

/* Fails where the number is the one, as soon as the gate is open. */
static int32_t add(int32_t unit, void* prepared, const nns_call* call) {
  (void)unit;
  (void)prepared;
  pthread_mutex_lock(&mutex);
  while (!gate_is_open) pthread_cond_wait(&opened, &mutex);
  pthread_mutex_unlock(&mutex);
  for (int64_t i = 0; i < call->write.sizes[0]; ++i)
    call->write.data[i] = call->reads[0].data[i] + call->attributes.number;
  return call->attributes.number == (float)UNLUCKY;
}

static nns_tensor matrix(float* data) {
  const int64_t sizes[2] = {SIDE, SIDE};
  return nns_dense(data, 2, sizes);
}

static nns_tensor vector(float* data) {
  const int64_t sizes[1] = {SIDE};
  return nns_dense(data, 1, sizes);
}

static nns_tensor map(float* data, int64_t images, int64_t channels, int64_t side) {
  const int64_t sizes[4] = {images, channels, side, side};
  return nns_dense(data, 4, sizes);
}

static nns_session* open_session(nns_runtime** runtime, const char* config, const char* costs,
                                 size_t most_calls) {
  nns_session* session = NULL;
  EXPECT(nns_create(config, runtime) == NNS_OK);
  EXPECT(nns_session_open(*runtime, costs, most_calls, &session) == NNS_OK);
  EXPECT(nns_start(*runtime) == NNS_OK);
  return session;
}

static void write_costs(const char* path) {
  static const char* const words[] = {"", " relu", " add"};
  FILE* file = fopen(path, "w");
  EXPECT(file != NULL);
  fprintf(file, "{\"format\": 1, \"costs_us\": {\"copy 4 -> 4\": {\"cpu\": 1}");
  for (int i = 0; i < 3; ++i)
    fprintf(file, ", \"matmul 4x4 4x4 -> 4x4%s\": {\"cpu\": 900, \"npu\": 1}", words[i]);
  for (int i = 0; i < 3; ++i) fprintf(file, ", \"scalar 4 -> 4%s\": {\"vpu\": 1}", words[i]);
  fprintf(file, "}}\n");
  EXPECT(fclose(file) == 0);
}

/* Calls of one shape: only some are what an element said that it supports. */
static void support(const char* costs) {
  nns_runtime *runtime = NULL, *other = NULL;
  const char* config = "{\"elements\": [\"cpu\", \"linked:product\"], \"policy\": \"met\"}";
  nns_session* session = open_session(&runtime, config, costs, 4);
  expect_refused(nns_create(config, &other), NNS_BAD_INPUT, "unit 0 of product is another runtime's");
  float a[CELLS], b[CELLS] = {0}, y[CELLS];
  for (int i = 0; i < CELLS; ++i) a[i] = (float)(i - 8);
  for (int i = 0; i < SIDE; ++i) b[i * SIDE + i] = 1.0F;
  const nns_tensor none = nns_absent(), ta = matrix(a), tb = matrix(b), ty = matrix(y);
  EXPECT(nns_gemm(session, NULL, ta, tb, none, none, ty, NULL) == NNS_OK);
  EXPECT(products == 1 && y[0] == -8.0F && y[CELLS - 1] == 7.0F);
  nns_attributes relu = nns_defaults(), twice = nns_defaults();
  relu.function = NNS_RELU;
  EXPECT(nns_gemm(session, &relu, ta, tb, none, none, ty, NULL) == NNS_OK);
  EXPECT(y[0] == 0.0F && y[CELLS - 1] == 7.0F);
  twice.scale = 2.0F;
  EXPECT(nns_gemm(session, &twice, ta, tb, none, none, ty, NULL) == NNS_OK);
  EXPECT(y[0] == -16.0F && y[CELLS - 1] == 14.0F);
  nns_tensor transposed = ta;
  transposed.strides[0] = 1;
  transposed.strides[1] = SIDE;
  EXPECT(nns_gemm(session, NULL, transposed, tb, none, none, ty, NULL) == NNS_OK);
  EXPECT(y[1] == a[SIDE] && y[SIDE] == a[1]);
  /* A tensor without data is absent, whatever sizes it has. */
  nns_tensor hollow = ty;
  hollow.data = NULL;
  EXPECT(products == 1);
  EXPECT(nns_gemm(session, NULL, ta, tb, none, hollow, ty, NULL) == NNS_OK && products == 2);
  EXPECT(nns_gemm(session, NULL, ta, tb, none, none, ty, NULL) == NNS_OK && products == 3);
  nns_close(runtime);
  EXPECT(nns_create(config, &other) == NNS_OK);
  nns_close(other);
}

static nns_status enqueue_scalar(nns_session* session, float number, float* x, float* y,
                                 uint64_t* ticket) {
  nns_call call = {0};
  call.operation = NNS_SCALAR;
  call.attributes = nns_defaults();
  call.attributes.number = number;
  call.reads_count = 1;
  call.reads[0] = vector(x);
  call.write = vector(y);
  return nns_enqueue(session, &call, ticket);
}

static const char* const kFailing = "{\"elements\": [\"cpu\", \"linked:unlucky\"]}";

/* Of the calls behind one that fails those fail that read what it wrote. */
static void failures(const char* costs) {
  nns_runtime* runtime = NULL;
  nns_session* session = open_session(&runtime, kFailing, costs, 8);
  float v[SIDE] = {0}, w[SIDE] = {7, 7, 7, 7}, x[SIDE] = {1, 1, 1, 1}, y[SIDE] = {0}, z[SIDE] = {0};
  uint64_t tickets[5];
  set_gate(0);
  EXPECT(enqueue_scalar(session, UNLUCKY, x, y, &tickets[0]) == NNS_OK);
  EXPECT(nns_copy(session, vector(y), vector(z), &tickets[1]) == NNS_OK); /* Reads what is none. */
  EXPECT(nns_copy(session, vector(w), vector(x), &tickets[2]) == NNS_OK); /* Writes what was read. */
  EXPECT(nns_copy(session, vector(w), vector(y), &tickets[3]) == NNS_OK); /* Writes all anew. */
  EXPECT(nns_copy(session, vector(y), vector(v), &tickets[4]) == NNS_OK); /* Reads that. */
  set_gate(1);
  for (int i = 0; i < 2; ++i)
    expect_refused(nns_session_wait(session, tickets[i], -1.0), NNS_FAILED, "vpu1 failed");
  for (int i = 2; i < 5; ++i) EXPECT(nns_session_wait(session, tickets[i], -1.0) == NNS_OK);
  EXPECT(x[0] == 7.0F && v[SIDE - 1] == 7.0F && z[0] == 0.0F);
  expect_refused(nns_session_finish(session), NNS_FAILED, "vpu1 failed");
  EXPECT(nns_session_finish(session) == NNS_OK);
  nns_close(runtime);
}

typedef struct turns {
  nns_session* session;
  float number;
  long wrong;
} turns;

static void* take_turns(void* argument) {
  turns* mine = argument;
  float x[SIDE] = {0}, y[SIDE];
  const nns_status expected = mine->number == (float)UNLUCKY ? NNS_FAILED : NNS_OK;
  for (int i = 0; i < TURNS; ++i)
    if (enqueue_scalar(mine->session, mine->number, x, y, NULL) != expected) ++mine->wrong;
  return NULL;
}

/* One place for all calls: a call's status is its own, whoever takes the place then. */
static void statuses(const char* costs) {
  nns_runtime* runtime = NULL;
  set_gate(1);
  nns_session* session = open_session(&runtime, kFailing, costs, 1);
  float x[SIDE] = {0}, y[SIDE];
  uint64_t failed, sound;
  EXPECT(enqueue_scalar(session, UNLUCKY, x, y, &failed) == NNS_OK);
  EXPECT(nns_session_finish(session) == NNS_FAILED);
  EXPECT(enqueue_scalar(session, 1.0F, x, y, &sound) == NNS_OK);
  EXPECT(nns_session_finish(session) == NNS_OK);
  EXPECT(nns_session_wait(session, failed, 0.0) == NNS_FAILED);
  EXPECT(enqueue_scalar(session, UNLUCKY, x, y, &failed) == NNS_OK);
  EXPECT(nns_session_wait(session, failed, -1.0) == NNS_FAILED);
  EXPECT(nns_session_wait(session, sound, 0.0) == NNS_OK);
  turns all[3] = {{session, UNLUCKY, 0}, {session, 1.0F, 0}, {session, 2.0F, 0}};
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i)
    EXPECT(pthread_create(&threads[i], NULL, take_turns, &all[i]) == 0);
  for (int i = 0; i < 3; ++i) EXPECT(pthread_join(threads[i], NULL) == 0 && all[i].wrong == 0);
  nns_close(runtime);
}

/* Whatever is read while the result is written lies elsewhere. */
static void memory(void) {
  enum { DEPTH = 257, PIXELS = SIDE * SIDE };
  nns_runtime* runtime = NULL;
  nns_session* session = open_session(&runtime, NULL, NULL, 4);
  const nns_tensor none = nns_absent();
  const char* words = "the result shares memory with input";
  static float a[SIDE * DEPTH], b[DEPTH * SIDE], y[CELLS];
  const int64_t left[2] = {SIDE, DEPTH}, right[2] = {DEPTH, SIDE};
  const nns_tensor ta = nns_dense(a, 2, left), tb = nns_dense(b, 2, right), ty = matrix(y);
  expect_refused(nns_gemm(session, NULL, ta, tb, none, ty, ty, NULL), NNS_BAD_INPUT, words);
  expect_refused(nns_gemm(session, NULL, ty, ty, none, none, ty, NULL), NNS_BAD_INPUT, words);
  EXPECT(nns_gemm(session, NULL, ta, tb, none, none, ty, NULL) == NNS_OK);

  /* Four channels of two images: the last two of each are computed of the first two. */
  float maps[2 * 4 * PIXELS], weight[2] = {1.0F, 2.0F}, small[2 * 4 * PIXELS / 4];
  for (int i = 0; i < 2 * 4 * PIXELS; ++i) maps[i] = (float)i;
  nns_tensor all = map(maps, 2, 4, SIDE), first = all, last = all;
  first.sizes[1] = last.sizes[1] = 2;
  last.data += 2 * PIXELS;
  nns_attributes depthwise = nns_defaults();
  depthwise.groups = 2;
  const nns_tensor taps = map(weight, 2, 1, 1);
  EXPECT(nns_conv2d(session, &depthwise, first, taps, none, none, last, NULL) == NNS_OK);
  EXPECT(last.data[1] == 1.0F && last.data[PIXELS + 1] == 2.0F * (PIXELS + 1));
  EXPECT(last.data[all.strides[0]] == maps[all.strides[0]] && maps[1] == 1.0F);
  expect_refused(nns_conv2d(session, &depthwise, first, taps, none, last, last, NULL),
                 NNS_BAD_INPUT, words);
  expect_refused(nns_conv2d(session, &depthwise, first, taps, none, none, first, NULL),
                 NNS_BAD_INPUT, words);
  last.data -= PIXELS; /* One channel is in both. */
  expect_refused(nns_conv2d(session, &depthwise, first, taps, none, none, last, NULL),
                 NNS_BAD_INPUT, words);
  const int64_t line[3] = {1, 1, SIDE}, tap[3] = {1, 1, 1};
  const nns_tensor row = nns_dense(maps, 3, line);
  expect_refused(nns_conv1d(session, NULL, row, nns_dense(weight, 3, tap), none, row, NULL),
                 NNS_BAD_INPUT, words);
  nns_attributes halves = nns_defaults();
  for (int i = 0; i < 2; ++i) halves.window[i] = halves.stride[i] = 2;
  expect_refused(nns_pool2d(session, &halves, all, map(maps, 2, 4, SIDE / 2), NULL), NNS_BAD_INPUT,
                 words);
  EXPECT(nns_pool2d(session, &halves, all, map(small, 2, 4, SIDE / 2), NULL) == NNS_OK);
  expect_refused(nns_resize2d(session, NULL, all, all, NULL), NNS_BAD_INPUT, words);
  expect_refused(nns_norm(session, NULL, vector(a), vector(y), none, vector(y), NULL),
                 NNS_BAD_INPUT, words);

  /* What may write where it reads computes the same there. */
  nns_attributes logarithm = nns_defaults();
  logarithm.flag = 1;
  float here[SIDE] = {1, 2, 3, 4}, there[SIDE];
  EXPECT(nns_softmax(session, &logarithm, vector(here), vector(there), NULL) == NNS_OK);
  EXPECT(nns_softmax(session, &logarithm, vector(here), vector(here), NULL) == NNS_OK);
  EXPECT(memcmp(here, there, sizeof here) == 0 && fabsf(here[3] + 0.4401897F) < 1e-5F);
  EXPECT(nns_norm(session, NULL, vector(here), none, none, vector(there), NULL) == NNS_OK);
  EXPECT(nns_norm(session, NULL, vector(here), none, none, vector(here), NULL) == NNS_OK);
  EXPECT(memcmp(here, there, sizeof here) == 0);
  nns_close(runtime);
}

int main(int count, char** words) {
  static const nns_element product = {NNS_VERSION, "product", "npu", 1,   supports_product,
                                      NULL,        multiply,  NULL,  NULL};
  static const nns_element unlucky = {NNS_VERSION, "unlucky", "vpu", 1, supports_scalar,
                                      NULL,        add,       NULL,  NULL};
  if (count != 2) return 2;
  EXPECT(nns_link_element(&product) == NNS_OK && nns_link_element(&unlucky) == NNS_OK);
  write_costs(words[1]);
  memory();
  support(words[1]);
  failures(words[1]);
  statuses(words[1]);
  puts("ok");
  return 0;
}
