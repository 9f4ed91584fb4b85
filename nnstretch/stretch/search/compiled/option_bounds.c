/* Bounds through one segment option over all merged widths that it reads. */
#include "bins.h"
#include "relaxations.h"

/* The least cost of every row, and with losses, the highest row's, the least of all cases. */
typedef struct {
  double *cost_us; /* [row] */
  double together_us;
} Least;

/* Return whether a deadline would lower `least`; lower it where `keep` is set. */
INLINE int lower(Least *least, const Relaxations *relaxations, const double *losses_us,
                 double deadline_us, const double *rewards, int64_t branches, int64_t lanes,
                 int keep) {
  const int64_t rows = relaxations->rows;
  int is_lower = 0;
  double costs_us[rows];
  for (int64_t r = 0; r < rows; r++) {
    double reward = rewards[r];
    for (int64_t b = 1; b < branches; b++) reward += rewards[b * lanes + r];
    const double cost_us = deadline_us - reward;
    is_lower |= cost_us < least->cost_us[r];
    if (keep && cost_us < least->cost_us[r]) least->cost_us[r] = cost_us;
    costs_us[r] = cost_us + losses_us[r];
  }
  for (int64_t c = 0; c < relaxations->cases; c++) {
    double highest_us = -INFINITY;
    for (int64_t r = 0; r < rows; r++) {
      const double us = costs_us[r] + relaxations->offsets_us[c * rows + r];
      highest_us = us > highest_us ? us : highest_us;
    }
    is_lower |= highest_us < least->together_us;
    if (keep && highest_us < least->together_us) least->together_us = highest_us;
  }
  return is_lower;
}

/* Mark the buckets that may hold the least bound. No member is behind the end of its bucket, so what
 * costs there with all that is best up to it bounds the least from above; none is before its begin,
 * so a bucket that costs no less there holds nothing less. */
INLINE void mark_buckets(const Bin *bin, const Segment *segment, const double *losses_us,
                         Least *least, uint8_t *is_wanted) {
  const int64_t branches = bin->branches, both = branches * bin->lanes, most = bin->bucket_count;
  int64_t first = 0;
  while (first < most && !has_capacity(segment, bin->best_macs + first * branches))
    is_wanted[first++] = 0;
  for (int64_t q = first; q < most; q++)
    lower(least, segment->relaxations, losses_us, bucket_end_us(bin, q),
          bin->best_rewards + q * both, branches, bin->lanes, 1);
  for (int64_t q = first; q < most; q++)
    is_wanted[q] = (uint8_t)lower(least, segment->relaxations, losses_us, bucket_begin_us(bin, q),
                                  bin->best_rewards + q * both, branches, bin->lanes, 0);
}

/* `segment_bound`: goes through those buckets of each bin that may hold its least bound. */
VECTORIZED static int32_t segment_bound(const Segment *segment, const double *losses_us /* [bin][row] */,
                                 double *together_us, double *widest_us) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t branches = segment->option->branches, rows = relaxations->rows;
  Bin bin;
  double *memory = allocate(&bin, segment), cost_us[rows];
  uint8_t is_wanted[MOST_BUCKETS];
  if (!memory) return 1;
  for (int64_t n = 0; n < segment->bins; n++) {
    Least least = {cost_us, INFINITY};
    const double *losses = losses_us + n * rows;
    for (int64_t r = 0; r < rows; r++) cost_us[r] = INFINITY;
    collect(&bin, segment, segment->bin_numbers[n]);
    distribute(&bin, relaxations);
    mark_buckets(&bin, segment, losses, &least, is_wanted);
    list_members(&bin, is_wanted);
    for (int64_t q = 0; q < bin.bucket_count; q++) {
      if (bin.begin[q + 1] == bin.begin[q] ||
          !lower(&least, relaxations, losses, bucket_begin_us(&bin, q),
                 bin.best_rewards + q * branches * bin.lanes, branches, bin.lanes, 0))
        continue;
      enter(&bin, q);
      for (int64_t m = bin.begin[q]; m < bin.begin[q + 1]; m++) {
        pass(&bin, relaxations, bin.order[m]);
        if (has_capacity(segment, bin.branch_macs))
          lower(&least, relaxations, losses, bin.us[bin.order[m]], bin.rewards, branches, bin.lanes,
                1);
      }
    }
    together_us[n] = least.together_us;
    for (int64_t k = 0; k < relaxations->cases * rows; k++)
      widest_us[k * segment->bins + n] = cost_us[k % rows] + relaxations->offsets_us[k];
  }
  free(memory);
  return 0;
}

/* Choose rows that raise the bound of one case most, one by one, each where it is least so far. */
INLINE void choose_rows(const double *costs_us, const double *offsets_us, int64_t rows,
                        int64_t columns, int64_t most, int64_t most_chosen, double *together_us,
                        uint8_t *is_chosen) {
  for (int64_t k = 0; k < columns; k++) together_us[k] = INFINITY;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t k = 0; k < columns; k++) {
      const double us = costs_us[r * most + k] + offsets_us[r];
      together_us[k] = us < together_us[k] ? us : together_us[k];
    }
  for (int64_t n = 0; n < most_chosen; n++) {
    int64_t least = 0, highest = 0;
    for (int64_t k = 1; k < columns; k++)
      if (together_us[k] < together_us[least]) least = k;
    if (!(together_us[least] < INFINITY)) return; /* nothing can rise */
    for (int64_t r = 1; r < rows; r++)
      if (costs_us[r * most + least] + offsets_us[r] >
          costs_us[highest * most + least] + offsets_us[highest])
        highest = r;
    is_chosen[highest] = 1;
    for (int64_t k = 0; k < columns; k++) {
      const double us = costs_us[highest * most + k] + offsets_us[highest];
      together_us[k] = n && together_us[k] > us ? together_us[k] : us;
    }
  }
}

/* `sampled_rows`: which rows `tightest_rows` chooses; and of every row the sum over bins of its least
 * bound, at most `loosest_us` each. Return 1 without memory. */
VECTORIZED static int32_t tightest_rows(const Segment *segment, const double *losses_us /* [bin][row] */,
                                 int64_t most_chosen, double loosest_us, uint8_t *is_chosen,
                                 double *levels_us) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t rows = relaxations->rows, most = most_options(segment);
  Bin bin;
  double *memory = allocate(&bin, segment);
  double *costs_us = malloc(sizeof(double) * (size_t)((rows + 1) * most));
  for (int64_t r = 0; r < rows; r++) levels_us[r] = 0.0;
  for (int64_t n = 0; memory && costs_us && n < segment->bins; n++) {
    collect(&bin, segment, segment->bin_numbers[n]);
    distribute(&bin, relaxations);
    const int64_t columns = cost_table(&bin, segment, losses_us + n * rows, most, costs_us);
    if (columns)
      for (int64_t c = 0; c < relaxations->cases; c++)
        choose_rows(costs_us, relaxations->offsets_us + c * rows, rows, columns, most, most_chosen,
                    costs_us + rows * most, is_chosen);
    for (int64_t r = 0; r < rows; r++) {
      double least_us = loosest_us;
      for (int64_t c = 0; c < relaxations->cases; c++)
        for (int64_t k = 0; k < columns; k++) {
          const double us = costs_us[r * most + k] + relaxations->offsets_us[c * rows + r];
          least_us = us < least_us ? us : least_us;
        }
      levels_us[r] += least_us;
    }
  }
  const int is_short = !memory || !costs_us;
  free(costs_us);
  free(memory);
  return is_short;
}

/* `tilt_losses_us` of some bins: [bin][row]. */
static void list_losses(double *losses_us, const Segment *segment) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t rows = relaxations->rows, branches = segment->option->branches;
  for (int64_t r = 0; r < rows; r++) {
    const double gain_us = channel_gain_us(relaxations, r, branches, segment->entries);
    for (int64_t n = 0; n < segment->bins; n++) {
      const double span = segment->entries[0]->spans[segment->bin_numbers[n]];
      losses_us[n * rows + r] = (gain_us < 0.0 ? gain_us : 0.0) * span;
    }
  }
}

/* `best_relaxations` by a sample of options in a few bins: their numbers. Return how many; -1
 * without memory. */
int64_t best_relaxations(const SegmentOption *option, const EntryBins *const *entries,
                         const Minorants *behind, const Prices *prices, const Choice *choice,
                         int64_t bins, const int64_t *bin_numbers, int64_t *chosen) {
  const int64_t rows = all_relaxations(option, behind, prices);
  int64_t count = 0, is_level = 0, most_level = -1;
  if (rows <= 2) {
    for (; count < rows; count++) chosen[count] = count;
    return count;
  }
  double *memory = malloc(sizeof(double) * (size_t)(relaxations_size(rows) + (bins + 1) * rows));
  if (!memory) return -1;
  double *levels_us = memory + relaxations_size(rows), *losses_us = levels_us + rows;
  uint8_t is_chosen[rows];
  Relaxations relaxations;
  set_relaxations(&relaxations, memory, option, behind, prices, NULL, rows);
  const Segment segment = {option, entries, &relaxations, choice->most_sampled, bins, bin_numbers};
  list_losses(losses_us, &segment);
  for (int64_t r = 0; r < rows; r++) is_chosen[r] = 0;
  const int is_short = tightest_rows(&segment, losses_us, choice->most_together,
                                     choice->loosest_us, is_chosen, levels_us);
  for (int64_t r = 0; r < rows; r++) {
    if (is_chosen[r]) chosen[count++] = r;
    if (relaxations.segment_per_channel[r] != 0.0) continue;
    is_level |= is_chosen[r];
    if (most_level < 0 || levels_us[r] > levels_us[most_level]) most_level = r;
  }
  if (!count) {
    chosen[count++] = 0;
    is_level = relaxations.segment_per_channel[0] == 0.0;
  }
  /* With prices of widths alone, bins outside the sample may be bounded by next to nothing. */
  if (!is_level) chosen[count++] = most_level < 0 ? 0 : most_level;
  free(memory);
  return is_short ? -1 : count;
}

/* `sampled_bins`: of the bins that are read, those next to a few places, rising. */
INLINE int64_t sample_bins(const Cut *cut, const int64_t *read, int64_t count, int64_t *sampled) {
  const int64_t wanted[] = {cut->full_bin / 3, cut->full_bin, (2 * cut->full_bin + cut->bins) / 3,
                            cut->bins - 1};
  int64_t few = 0;
  for (int64_t w = 0; w < 4; w++) {
    int64_t nearest = 0;
    for (int64_t k = 1; k < count; k++)
      if (llabs(read[k] - wanted[w]) < llabs(read[nearest] - wanted[w])) nearest = k;
    if (!few || sampled[few - 1] < read[nearest]) sampled[few++] = read[nearest];
  }
  return few;
}

/* Bounds at the usable widths of the bins that are read, from those of the bins. */
INLINE void spread(const Cut *cut, const Segment *segment, const uint8_t *is_usable,
                   const double *together_us, const double *widest_us, double *by_width) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t rows = relaxations->rows, branches = segment->option->branches;
  double gain_us[rows];
  for (int64_t r = 0; r < rows; r++)
    gain_us[r] = channel_gain_us(relaxations, r, branches, segment->entries);
  for (int64_t n = 0; n < segment->bins; n++) {
    const int64_t bin = segment->bin_numbers[n];
    for (int64_t w = cut->starts[bin]; w < cut->starts[bin + 1]; w++) {
      if (!is_usable[w]) continue;
      by_width[w] = together_us[n];
      if (cut->bins == cut->widths) continue;
      double least_us = INFINITY;
      for (int64_t c = 0; c < relaxations->cases; c++) {
        double highest_us = -INFINITY;
        for (int64_t r = 0; r < rows; r++) {
          const double us =
              widest_us[(c * rows + r) * segment->bins + n] + gain_us[r] * cut->missing[w];
          highest_us = us > highest_us ? us : highest_us;
        }
        least_us = highest_us < least_us ? highest_us : least_us;
      }
      by_width[w] = least_us > by_width[w] ? least_us : by_width[w];
    }
  }
}

/* `bound_option`: at every merged width, infinite where not usable. `chosen` are the numbers of
 * `count` relaxations, or become those of the best where `count` is 0. Return how many; -1 without
 * memory. */
int64_t option_bound(const SegmentOption *option, const EntryBins *const *entries, const Cut *cut,
                     const Minorants *behind, const Prices *prices, const Choice *choice,
                     const uint8_t *is_usable, int64_t count, int64_t *chosen, double *by_width) {
  int64_t bins = 0, read[cut->bins], sampled[4], few = 1;
  for (int64_t w = 0; w < cut->widths; w++) by_width[w] = INFINITY;
  for (int64_t n = 0; n < cut->bins; n++) {
    int is_read = 0;
    for (int64_t w = cut->starts[n]; w < cut->starts[n + 1]; w++) is_read |= is_usable[w];
    if (is_read) read[bins++] = n;
  }
  if (!bins && !option->is_projected) return count;
  if (option->is_projected) {
    bins = 1;
    read[0] = sampled[0] = 0; /* the original width alone */
  } else {
    few = sample_bins(cut, read, bins, sampled);
  }
  if (!count)
    count = best_relaxations(option, entries, behind, prices, choice, few, sampled, chosen);
  if (count < 0) return -1;
  const int64_t cases = 2, size = relaxations_size(count) + bins * (1 + (cases + 1) * count);
  double *memory = malloc(sizeof(double) * (size_t)size);
  if (!memory) return -1;
  double *losses_us = memory + relaxations_size(count), *together_us = losses_us + bins * count;
  double *widest_us = together_us + bins;
  Relaxations relaxations;
  set_relaxations(&relaxations, memory, option, behind, prices, chosen, count);
  const Segment segment = {option, entries, &relaxations, 0, bins, read};
  list_losses(losses_us, &segment);
  const int is_short = segment_bound(&segment, losses_us, together_us, widest_us);
  if (option->is_projected)
    by_width[cut->full_width] = together_us[0];
  else
    spread(cut, &segment, is_usable, together_us, widest_us, by_width);
  free(memory);
  return is_short ? -1 : count;
}
