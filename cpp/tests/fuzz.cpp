// Broken files: whatever bytes come, readers refuse with an Error or accept; never anything else.
// Built with AddressSanitizer. WITH_RUNTIME adds what needs the whole library.
//
//   fuzz SECONDS FOLDER      FOLDER: sound weights.bin, x.npy, costs.json, workload.json
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "json.hpp"
#include "nnstretch/error.hpp"
#include "nnstretch/weights.hpp"
#include "npy.hpp"
#include "sha256.hpp"
#include "workload.hpp"
#if defined(WITH_RUNTIME)
#include "fuzz_calls.hpp"
#include "nnstretch/costs.hpp"
#include "nnstretch/nnstretch.h"
#endif

namespace {

using namespace nnstretch;

std::mt19937_64 draw(1);

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
}

std::size_t place(const std::string& bytes) { return bytes.empty() ? 0 : draw() % bytes.size(); }

// One to eight changes: bits, numbers at the edges, parts cut, doubled, or taken from elsewhere.
std::string changed(std::string bytes) {
  static const std::vector<std::string> words{"-1", "1e999", "nan", "\"", "[[[[", "{}", "null", "'<f8'",
                                              "4294967296", "\\u0000", ",", "(", "0.5"};
  for (std::size_t n = 1 + draw() % 8; n > 0; --n) {
    const std::size_t at = place(bytes);
    const std::uint64_t edges[] = {0, 1, 0x7f, 0xffff, 0x7fffffff, 0xffffffff, ~std::uint64_t{0},
                                   bytes.size(), bytes.size() / 4};
    switch (draw() % 6) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw() % 8));
        break;
      case 1:
        if (bytes.size() >= 8) {
          const std::uint64_t number = edges[draw() % std::size(edges)];
          const std::size_t width = std::size_t{1} << draw() % 4;
          std::memcpy(&bytes[at % (bytes.size() - 7)], &number, width);
        }
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, bytes.substr(place(bytes), draw() % 64)); break;
      case 4: bytes.insert(at, words[draw() % words.size()]); break;
      default: bytes.erase(at, draw() % 32); break;
    }
  }
  return bytes;
}

// Weights whose size and digest are right again, so that their table is read.
void mend(std::string& bytes) {
  if (bytes.size() < 96) return;
  const std::uint64_t size = bytes.size();
  std::memcpy(&bytes[24], &size, sizeof size);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto digest = sha256(data + 96, bytes.size() - 96);
  std::memcpy(&bytes[64], digest.data(), digest.size());
}

void read_weights(std::string bytes) {
  if (draw() % 4 != 0) mend(bytes);
  // The bytes end where the memory does, so that reading on is seen.
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes.size() + (bytes.empty() ? 1 : 0)) != 0) std::abort();
  std::memcpy(memory, bytes.data(), bytes.size());
  const Weights* weights = nullptr;
  try {
    weights = new Weights(Weights::of_memory(memory, bytes.size(), "fuzzed"));
    const View view = weights->tensor("w", {2, 3});
    volatile float last = weights->data()[view.end() - 1];
    (void)last;
  } catch (const Error&) {
    delete weights;
    std::free(memory);
    throw;
  }
  delete weights;
  std::free(memory);
}

struct Target {
  const char* file;  // Null for what reads none.
  std::function<void(const std::string& bytes, const std::string& scratch)> read;
};

std::vector<Target> targets() {
  std::vector<Target> all{
      {"weights.bin", [](const std::string& bytes, const std::string&) { read_weights(bytes); }},
      {"x.npy",
       [](const std::string& bytes, const std::string& scratch) {
         write_all(scratch, bytes);
         read_npy(scratch, {2, 3});
       }},
      {"costs.json",
       [](const std::string& bytes, const std::string&) {
         check_keys(Json::parse(bytes, "fuzzed"), {"format", "costs_us"}, "fuzzed");
       }},
      {"workload.json",
       [](const std::string& bytes, const std::string& scratch) {
         write_all(scratch, bytes);
         read_workload(scratch);
       }},
  };
#if defined(WITH_RUNTIME)
  all.push_back({"costs.json", [](const std::string& bytes, const std::string& scratch) {
                   write_all(scratch, bytes);
                   read_costs(scratch);
                 }});
  all.push_back({"config.json", [](const std::string& bytes, const std::string&) {
                   nns_runtime* runtime = nullptr;
                   if (nns_create(bytes.c_str(), &runtime) != NNS_OK)
                     throw Error(Status::bad_input, nns_last_error());
                   nns_close(runtime);
                 }});
  const auto calls = std::make_shared<CallFuzzer>();
  all.push_back({nullptr, [calls](const std::string&, const std::string&) {
                   if (calls->run() != NNS_OK) throw Error(Status::bad_input, nns_last_error());
                 }});
#endif
  return all;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(words[1]));
  const std::string folder = words[2];
  long refused = 0, accepted = 0;
  const std::vector<Target> all = targets();
  std::vector<std::string> sound;
  for (const Target& target : all) {
    sound.push_back(target.file ? read_all(folder + "/" + target.file) : "");
    if (target.file) target.read(sound.back(), folder + "/scratch");
  }
  while (std::chrono::steady_clock::now() < until)
    for (std::size_t i = 0; i < all.size(); ++i) {
      try {
        all[i].read(changed(sound[i]), folder + "/scratch");
        ++accepted;
      } catch (const Error&) {
        ++refused;
      }
    }
  std::printf("%ld refused, %ld accepted\n", refused, accepted);
  return refused > 0 ? 0 : 1;
}
