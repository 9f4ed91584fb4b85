// The weights file: magic, version, table of names, shapes and offsets, data at multiples of 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nnstretch/view.hpp"

namespace nnstretch {

// Little-endian:
//   0  8 bytes  magic "NNSTRWTS"
//   8  u32      version, 1
//  12  u32      number of tensors
//  16  u64      bytes of the table
//  24  u64      bytes of the file
//  32  32 bytes fingerprint of the network that the weights belong to
//  64  32 bytes SHA-256 of everything behind it
//  96  table: for each tensor u32 bytes of its name, name, u32 rank, u64 sizes, u64 offset in bytes
//  then data, each tensor at a multiple of 64 bytes, float32
class Weights {
 public:
  // Map a file. Throws Error (bad_input) where it is cut short, changed or not of this format.
  static Weights open(const std::string& path);
  // Use memory that stays there as long as this object; aligned to 64 bytes.
  static Weights of_memory(const void* bytes, std::size_t size, const std::string& name);

  Weights(Weights&& other) noexcept;
  Weights& operator=(Weights&&) = delete;
  Weights(const Weights&) = delete;
  ~Weights();

  // A tensor by name. Throws Error where it is absent or of another shape.
  View tensor(const std::string& name, std::initializer_list<std::int64_t> shape) const;
  // Throws Error where the weights belong to another network.
  void check_network(const std::string& fingerprint) const;
  const float* data() const { return reinterpret_cast<const float*>(bytes_); }
  std::size_t size_bytes() const { return size_; }

 private:
  struct Entry {
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  // Floats from the start of the file.
  };
  Weights(const unsigned char* bytes, std::size_t size, std::string name, bool mapped);
  void read_table();

  const unsigned char* bytes_;
  std::size_t size_;
  std::string name_;
  bool mapped_;
  std::map<std::string, Entry> entries_;
};

}  // namespace nnstretch
