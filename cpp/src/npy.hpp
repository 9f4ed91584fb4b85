// Arrays in .npy files, in C order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nnstretch {

// Numbers of a file of this shape; where whole ones are wanted, of int32 or int64, too. Throws Error
// for another shape, type or order, and for whole numbers that float32 does not hold.
std::vector<float> read_npy(const std::string& path, const std::vector<std::int64_t>& shape,
                            bool whole = false);
void write_npy(const std::string& path, const std::vector<std::int64_t>& shape,
               const std::vector<float>& numbers);
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace nnstretch
