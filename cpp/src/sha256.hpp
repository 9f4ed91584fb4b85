// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace nnstretch {

std::array<unsigned char, 32> sha256(const unsigned char* bytes, std::size_t size);
std::string hexadecimal(const unsigned char* bytes, std::size_t size);

}  // namespace nnstretch
