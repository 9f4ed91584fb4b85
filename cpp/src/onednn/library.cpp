// The door to oneDNN: what it offers, and its threads.
#include "library.hpp"

#include <dlfcn.h>

#include <string>

#include "nnstretch/error.hpp"
#include "onednn/epilogue.hpp"
#include "onednn/kernels.hpp"

namespace nnstretch::library {
namespace {

// Of whatever OpenMP oneDNN was built with; null where it was built with none.
template <typename Function>
Function openmp(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

int get_threads() {
  static const auto function = openmp<int (*)()>("omp_get_max_threads");
  return function ? function() : 0;
}

void set_threads(int count) {
  static const auto function = openmp<void (*)(int)>("omp_set_num_threads");
  if (function && count > 0) function(count);
}

std::string version() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

}  // namespace

const char* name() {
  static const std::string text = version();
  return text.c_str();
}

std::int64_t block() {
  static const std::int64_t channels = [] {
    const auto has = [](dnnl_cpu_isa_t wanted) {
      return (dnnl_get_effective_cpu_isa() & wanted) == wanted;
    };
    if (has(dnnl_cpu_isa_avx512_core)) return 16;
    return has(dnnl_cpu_isa_avx2) ? 8 : 0;
  }();
  return channels;
}

OneThread::OneThread() : before_(get_threads()) { set_threads(1); }
OneThread::~OneThread() { set_threads(before_); }

bool offers(const Call& call) {
  if (const auto* conv = std::get_if<Conv2d>(&call.operation)) return offers_convolution(*conv, call);
  if (const auto* conv = std::get_if<ConvTranspose2d>(&call.operation))
    return offers_deconvolution(*conv, call);
  if (const auto* matmul = std::get_if<Matmul>(&call.operation)) return offers_matmul(*matmul, call);
  if (const auto* pool = std::get_if<Pool2d>(&call.operation)) return offers_pool(*pool, call);
  return false;
}

std::unique_ptr<Kernel> kernel(const Request& request) {
  try {
    const Operation& operation = request.call.operation;
    if (const auto* conv = std::get_if<Conv2d>(&operation)) return convolution(*conv, request);
    if (const auto* conv = std::get_if<ConvTranspose2d>(&operation))
      return deconvolution(*conv, request);
    if (const auto* matmul = std::get_if<Matmul>(&operation)) return matrix_product(*matmul, request);
    if (const auto* pool = std::get_if<Pool2d>(&operation)) return pooling(*pool, request);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw Error(Status::no_memory, "oneDNN has no memory");
  }
  return nullptr;
}

}  // namespace nnstretch::library
