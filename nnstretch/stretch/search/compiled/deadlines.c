/* Latencies of an option's branches, and what the branches earn that keep each. */
#include "bins.h"
#include "relaxations.h"

/* `deadline_costs`: deadlines that meet demands, and behind them infinite ones up to `most`. Return
 * how many some bin has; -1 without memory. */
VECTORIZED int64_t deadline_costs(const SegmentOption *option, const EntryBins *const *entries,
                                  const Minorants *behind, const Prices *prices, int64_t rows,
                                  const int64_t *numbers, int64_t bins, int64_t most,
                                  double *deadline_us, /* [bin][deadline] */
                                  double *rewards /* [branch][row][bin][deadline] */) {
  const int64_t branches = option->branches, plane = bins * most;
  double prices_memory[relaxations_size(rows)];
  Relaxations relaxations;
  set_relaxations(&relaxations, prices_memory, option, behind, prices, numbers, rows);
  const Segment segment = {option, entries, &relaxations, 0, bins, NULL};
  Bin bin;
  double *memory = allocate(&bin, &segment);
  if (!memory) return -1;
  int64_t columns = 0;
  for (int64_t n = 0; n < bins; n++) {
    collect(&bin, &segment, n);
    distribute(&bin, &relaxations);
    int64_t column = 0;
    list_members(&bin, NULL);
    for (int64_t q = 0; q < bin.bucket_count; q++) {
      if (!has_capacity(&segment, bin.best_macs + q * branches)) continue;
      enter(&bin, q);
      for (int64_t m = bin.begin[q]; m < bin.begin[q + 1]; m++) {
        pass(&bin, &relaxations, bin.order[m]);
        if (!has_capacity(&segment, bin.branch_macs)) continue;
        deadline_us[n * most + column] = bin.us[bin.order[m]];
        for (int64_t b = 0; b < branches; b++)
          for (int64_t r = 0; r < rows; r++)
            rewards[(b * rows + r) * plane + n * most + column] = bin.rewards[b * bin.lanes + r];
        column++;
      }
    }
    columns = column > columns ? column : columns;
    for (; column < most; column++) {
      deadline_us[n * most + column] = INFINITY;
      for (int64_t k = 0; k < branches * rows; k++) rewards[k * plane + n * most + column] = 0.0;
    }
  }
  free(memory);
  return columns;
}
