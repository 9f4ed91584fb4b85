#include "nnstretch/weights.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "nnstretch/error.hpp"
#include "regular_file.hpp"
#include "sha256.hpp"

namespace nnstretch {
namespace {

constexpr char kMagic[] = "NNSTRWTS";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 96;
constexpr std::size_t kDigest = 64;
constexpr std::size_t kAlignment = 64;

[[noreturn]] void refuse_weights(const std::string& name, const std::string& why) {
  refuse("weights " + name + ", " + why);
}

// Reads numbers off the table; never beyond its end.
class Reader {
 public:
  Reader(const unsigned char* bytes, std::size_t size, const std::string& name)
      : bytes_(bytes), size_(size), name_(name) {}

  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string text(std::size_t length) {
    return std::string(reinterpret_cast<const char*>(take(length)), length);
  }
  bool at_end() const { return at_ == size_; }

 private:
  const unsigned char* take(std::size_t length) {
    if (length > size_ - at_) refuse_weights(name_, "its table ends early");
    at_ += length;
    return bytes_ + at_ - length;
  }
  const unsigned char* bytes_;
  std::size_t size_;
  std::size_t at_ = 0;
  const std::string& name_;
};

}  // namespace

Weights Weights::open(const std::string& path) {
  const RegularFile file(path, "weights " + path);
  const std::size_t size = file.size_bytes();
  if (size < kHeader) refuse_weights(path, "it is shorter than its header");
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (bytes == MAP_FAILED) refuse_weights(path, std::string("cannot be mapped: ") + std::strerror(errno));
  return Weights(static_cast<const unsigned char*>(bytes), size, path, true);
}

Weights Weights::of_memory(const void* bytes, std::size_t size, const std::string& name) {
  if (reinterpret_cast<std::uintptr_t>(bytes) % kAlignment != 0)
    refuse_weights(name, "their memory is not aligned to 64 bytes");
  if (size < kHeader) refuse_weights(name, "they are shorter than their header");
  return Weights(static_cast<const unsigned char*>(bytes), size, name, false);
}

Weights::Weights(const unsigned char* bytes, std::size_t size, std::string name, bool mapped)
    : bytes_(bytes), size_(size), name_(std::move(name)), mapped_(mapped) {
  try {
    read_table();
  } catch (...) {
    if (mapped_) munmap(const_cast<unsigned char*>(bytes_), size_);
    throw;
  }
}

Weights::Weights(Weights&& other) noexcept
    : bytes_(other.bytes_),
      size_(other.size_),
      name_(std::move(other.name_)),
      mapped_(std::exchange(other.mapped_, false)),
      entries_(std::move(other.entries_)) {}

Weights::~Weights() {
  if (mapped_) munmap(const_cast<unsigned char*>(bytes_), size_);
}

void Weights::read_table() {
  if (std::memcmp(bytes_, kMagic, 8) != 0) refuse_weights(name_, "this is no weights file");
  Reader header(bytes_ + 8, kHeader - 8, name_);
  const auto version = header.number<std::uint32_t>();
  if (version != kVersion)
    refuse_weights(name_, "they are of version " + std::to_string(version) + ", this program reads 1");
  const auto count = header.number<std::uint32_t>();
  const auto table_bytes = header.number<std::uint64_t>();
  const auto file_bytes = header.number<std::uint64_t>();
  if (file_bytes != size_)
    refuse_weights(name_, "they are " + std::to_string(size_) + " bytes where " +
                   std::to_string(file_bytes) + " were written");
  if (table_bytes > size_ - kHeader) refuse_weights(name_, "their table is longer than the file");
  const auto digest = sha256(bytes_ + kHeader, size_ - kHeader);
  if (std::memcmp(digest.data(), bytes_ + kDigest, digest.size()) != 0)
    refuse_weights(name_, "they were changed after they were written: their SHA-256 differs");
  Reader table(bytes_ + kHeader, static_cast<std::size_t>(table_bytes), name_);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string tensor = table.text(table.number<std::uint32_t>());
    const auto rank = table.number<std::uint32_t>();
    if (rank > kMaxRank) refuse_weights(name_, tensor + " has " + std::to_string(rank) + " axes");
    Entry entry;
    std::uint64_t elements = 1;
    for (std::uint32_t axis = 0; axis < rank; ++axis) {
      const auto length = table.number<std::uint64_t>();
      if (length == 0 || length > size_ || elements > size_ / length)
        refuse_weights(name_, tensor + " is larger than the file");
      elements *= length;
      entry.shape.push_back(static_cast<std::int64_t>(length));
    }
    const auto offset = table.number<std::uint64_t>();
    if (offset % kAlignment != 0 || offset < kHeader + table_bytes || offset > size_ ||
        elements > (size_ - offset) / sizeof(float))
      refuse_weights(name_, tensor + " lies outside the file");
    entry.offset = static_cast<std::int64_t>(offset / sizeof(float));
    if (!entries_.emplace(tensor, std::move(entry)).second)
      refuse_weights(name_, tensor + " is there twice");
  }
  if (!table.at_end()) refuse_weights(name_, "their table goes on behind its last tensor");
}

View Weights::tensor(const std::string& name, std::initializer_list<std::int64_t> shape) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) refuse_weights(name_, "there is no tensor " + name);
  if (entry->second.shape != std::vector<std::int64_t>(shape))
    refuse_weights(name_, name + " has another shape than the network reads");
  return dense(Storage::weights, 0, entry->second.offset, shape);
}

void Weights::check_network(const std::string& fingerprint) const {
  const std::string actual = hexadecimal(bytes_ + 32, 32);
  if (actual == fingerprint) return;
  // As many digits as it takes to see a difference, and a few.
  const auto apart = std::mismatch(actual.begin(), actual.end(), fingerprint.begin(), fingerprint.end());
  const auto shown = std::max<std::size_t>(12, static_cast<std::size_t>(apart.first - actual.begin()) + 4);
  refuse_weights(name_, "they belong to another network (fingerprint " + actual.substr(0, shown) +
                 ", this one is " + fingerprint.substr(0, shown) + ")");
}

}  // namespace nnstretch
