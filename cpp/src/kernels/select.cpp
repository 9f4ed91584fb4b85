// Choice of the instruction set, once, by what the processor says.
#include "kernels.hpp"

namespace nnstretch::kernels {

extern const Table baseline;
#if defined(NNSTRETCH_X86_LEVELS)
extern const Table x86_64_v3;
extern const Table x86_64_v4;
#endif

namespace {

const Table* choose() {
#if defined(NNSTRETCH_X86_LEVELS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return &x86_64_v4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &x86_64_v3;
#endif
  return &baseline;
}

}  // namespace

const Table& table() {
  static const Table* const chosen = choose();
  return *chosen;
}

}  // namespace nnstretch::kernels
