// Choice of the instruction set, once, by what the processor says.
#include "kernels.hpp"

namespace nnstretch::kernels {

extern const Table baseline;
#if defined(NNSTRETCH_X86_LEVELS)
extern const Table x86_64_v3;
extern const Table x86_64_v4;
#endif

const Table& table() {
#if defined(NNSTRETCH_X86_LEVELS)
  static const Table& chosen = [&]() -> const Table& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      return x86_64_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return x86_64_v3;
    return baseline;
  }();
  return chosen;
#else
  return baseline;
#endif
}

}  // namespace nnstretch::kernels
