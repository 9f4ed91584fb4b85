// Arrays in .npy files: float32 in C order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nnstretch {

// Numbers of a file of this shape. Throws Error for another shape, type or order.
std::vector<float> read_npy(const std::string& path, const std::vector<std::int64_t>& shape);
void write_npy(const std::string& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& numbers);
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace nnstretch
