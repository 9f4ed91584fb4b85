/* Least bounds first, rows that no other makes pointless, sums below a limit. */
#include "order.h"

/* The checksum of the sources, by which a library of others is not used. */
#ifndef KERNELS_VERSION
#define KERNELS_VERSION 0
#endif
uint32_t kernels_version(void) { return KERNELS_VERSION; }

double keep_least(Pair *pairs, int64_t total, int64_t count) {
  int64_t low = 0, high = total - 1;
  while (low < high) {
    const double pivot_us = pairs[low + (high - low) / 2].bound_us;
    int64_t first = low, last = high;
    while (first <= last) {
      while (pairs[first].bound_us < pivot_us) first++;
      while (pairs[last].bound_us > pivot_us) last--;
      if (first > last) break;
      const Pair pair = pairs[first];
      pairs[first++] = pairs[last];
      pairs[last--] = pair;
    }
    if (count <= last)
      high = last;
    else if (count >= first)
      low = first;
    else
      break;
  }
  return pairs[count].bound_us;
}

/* `pairs_below`, row by row, all looked at; the highest sum of each. */
int64_t pairs_below(int64_t prices, int64_t rows, int64_t columns,
                    const double *before_us /* [price][row] */,
                    const double *after_us /* [price][column] */, double limit_us,
                    int64_t *pairs /* [pair][2] */, double *sums_us /* [pair] */) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++) {
      double highest_us = -INFINITY;
      int64_t p = 0;
      for (; p < prices; p++) {
        const double us = before_us[p * rows + row] + after_us[p * columns + column];
        if (!(us < limit_us)) break;
        highest_us = us > highest_us ? us : highest_us;
      }
      pairs[2 * count] = row;
      pairs[2 * count + 1] = column;
      sums_us[count] = highest_us;
      count += p == prices;
    }
  return count;
}

void pareto_rows(int64_t rows, int64_t columns, const double *values, const uint8_t *is_first,
                 int64_t *kept, uint8_t *is_kept) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; row++) {
    if (is_first[row]) count = 0;
    int64_t match = -1;
    for (int64_t k = 0; k < count && match < 0; k++) {
      int64_t column = 0;
      while (column < columns &&
             values[column * rows + kept[k]] >= values[column * rows + row])
        column++;
      if (column == columns) match = k;
    }
    is_kept[row] = match < 0;
    if (match < 0) {
      kept[count++] = row;
    } else if (match > 0) { /* what matches one row often matches the next */
      const int64_t better = kept[match];
      kept[match] = kept[match / 2];
      kept[match / 2] = better;
    }
  }
}
