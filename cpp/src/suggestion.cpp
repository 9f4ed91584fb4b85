#include <algorithm>
#include <limits>

#include "nnstretch/schedule.hpp"

namespace nnstretch {

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t above = row[j];
        const std::size_t changed = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        row[j] = std::min({above + 1, row[j - 1] + 1, changed});
        diagonal = above;
      }
    }
    if (row.back() < fewest) {
      fewest = row.back();
      best = candidate;
    }
  }
  // A third of the letters may differ; what resembles no name is told all of them.
  if (fewest * 3 <= std::max(name.size(), best.size())) return ", the closest is " + best;
  std::string names;
  for (const std::string& candidate : known) names += (names.empty() ? "" : ", ") + candidate;
  return ", there are " + names;
}

}  // namespace nnstretch
