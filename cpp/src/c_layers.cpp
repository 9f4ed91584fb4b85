// Layer calls of the C interface: each fills the one struct of a call.
#include <algorithm>
#include <initializer_list>

#include "nnstretch/nnstretch.h"

namespace {

nns_status enqueue(nns_session* session, nns_operation operation, const nns_attributes* attributes,
                   std::initializer_list<nns_tensor> reads, const nns_tensor& write,
                   uint64_t* ticket) {
  nns_call call{};
  call.operation = operation;
  call.attributes = attributes ? *attributes : nns_defaults();
  call.reads_count = static_cast<int32_t>(reads.size());
  std::copy(reads.begin(), reads.end(), call.reads);
  call.write = write;
  return nns_enqueue(session, &call, ticket);
}

// (N,C,L) as (N,C,1,L).
nns_tensor as_map(nns_tensor tensor) {
  if (!tensor.data || tensor.rank != 3) return tensor;
  tensor.rank = 4;
  tensor.sizes[3] = tensor.sizes[2];
  tensor.strides[3] = tensor.strides[2];
  tensor.sizes[2] = 1;
  tensor.strides[2] = tensor.sizes[3] * tensor.strides[3];
  return tensor;
}

}  // namespace

extern "C" {

nns_status nns_conv2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor weight, nns_tensor bias, nns_tensor residual, nns_tensor y,
                      uint64_t* ticket) {
  return enqueue(session, NNS_CONV2D, attributes, {x, weight, bias, residual}, y, ticket);
}

nns_status nns_conv1d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor weight, nns_tensor bias, nns_tensor y, uint64_t* ticket) {
  nns_attributes along = attributes ? *attributes : nns_defaults();
  along.stride[0] = along.dilation[0] = 1;
  along.padding[0] = along.padding[2] = 0;
  return enqueue(session, NNS_CONV2D, &along, {as_map(x), as_map(weight), bias}, as_map(y), ticket);
}

nns_status nns_gemm(nns_session* session, const nns_attributes* attributes, nns_tensor a,
                    nns_tensor b, nns_tensor bias, nns_tensor residual, nns_tensor y,
                    uint64_t* ticket) {
  return enqueue(session, NNS_MATMUL, attributes, {a, b, bias, residual}, y, ticket);
}

nns_status nns_elementwise(nns_session* session, const nns_attributes* attributes, nns_tensor a,
                           nns_tensor b, nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_BINARY, attributes, {a, b}, y, ticket);
}

nns_status nns_activation(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                          nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_ELEMENTWISE, attributes, {x}, y, ticket);
}

nns_status nns_pool2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                      nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_POOL2D, attributes, {x}, y, ticket);
}

nns_status nns_norm(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                    nns_tensor weight, nns_tensor bias, nns_tensor y, uint64_t* ticket) {
  const bool layer = !attributes || attributes->axes > 0;
  const nns_operation operation = layer ? NNS_LAYER_NORM : NNS_GROUP_NORM;
  return enqueue(session, operation, attributes, {x, weight, bias}, y, ticket);
}

nns_status nns_softmax(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                       nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_SOFTMAX, attributes, {x}, y, ticket);
}

nns_status nns_resize2d(nns_session* session, const nns_attributes* attributes, nns_tensor x,
                        nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_RESIZE2D, attributes, {x}, y, ticket);
}

nns_status nns_copy(nns_session* session, nns_tensor x, nns_tensor y, uint64_t* ticket) {
  return enqueue(session, NNS_COPY, nullptr, {x}, y, ticket);
}
}
