/* Options of the branches of a segment in one bin of merged widths, by latency. */
#ifndef BINS_H
#define BINS_H
#include "kernels.h"

/* Options of all branches in one bin that keep pace, and buckets of their latencies. */
typedef struct {
  int64_t branches, lanes, count, bucket_count;
  double *us, *macs, *channels_out, *params_us; /* [option] */
  int64_t *branch, *bucket, *choice; /* [option]; the last is its row in its branch's table */
  int64_t *begin, *order;        /* members of bucket q: order[begin[q]] to order[begin[q + 1]] */
  double *first_us, *last_us;    /* [bucket], those of its first and last member */
  double *best_rewards, *best_macs; /* [bucket][branch][lane], [bucket][branch], up to its end */
  double *rewards, *branch_macs;    /* [branch][lane], [branch], to go through one bucket */
} Bin;

INLINE int64_t sample_step(const Segment *segment, const BranchTable *table) {
  const int64_t step = segment->most_sampled ? table->options / segment->most_sampled : 1;
  return step > 1 ? step : 1;
}

INLINE void collect(Bin *bin, const Segment *segment, int64_t number) {
  const Relaxations *relaxations = segment->relaxations;
  int64_t count = 0;
  for (int64_t b = 0; b < segment->option->branches; b++) {
    const BranchTable *table = segment->option->tables[b];
    const EntryBins *entry = segment->entries[b];
    const double tilt_us = entry->tilt_us * entry->spans[number];
    const int64_t step = sample_step(segment, table);
    for (int kind = 0; kind < KINDS && entry->us[kind]; kind++) {
      const double *ahead_us = entry->us[kind] + number * entry->columns;
      const double *ahead_macs = entry->macs[kind] + number * entry->columns;
      const double *ahead_params = entry->params[kind] + number * entry->columns;
      for (int64_t o = 0; o < table->options; o += step) {
        const int64_t column = table->first[o];
        const double us = ahead_us[column] + table->behind_us[kind][o];
        bin->us[count] = us;
        bin->macs[count] = ahead_macs[column] + table->macs[o];
        bin->channels_out[count] = (double)table->channels_out[o];
        bin->params_us[count] = 0.0;
        if (relaxations->per_param != 0.0)
          bin->params_us[count] = relaxations->per_param * (ahead_params[column] + table->params[o]);
        bin->branch[count] = b;
        bin->choice[count] = o;
        count += us - tilt_us <= segment->option->bounds.branch_us && us < INFINITY;
      }
    }
  }
  bin->count = count;
}

/* Raise the best rewards of a branch to those of an option. */
INLINE void raise(double *best, const Bin *bin, const Relaxations *relaxations, int64_t option) {
  const double macs = bin->macs[option], channels_out = bin->channels_out[option];
  const double params_us = bin->params_us[option];
  for (int64_t low = 0; low < bin->lanes; low += LANES) {
    for (int64_t r = low; r < low + LANES; r++) {
      double reward = relaxations->per_mac[r] * macs - relaxations->per_channel[r] * channels_out;
      reward += params_us;
      best[r] = reward > best[r] ? reward : best[r];
    }
  }
}

INLINE void distribute(Bin *bin, const Relaxations *relaxations) {
  const int64_t branches = bin->branches, both = branches * bin->lanes, count = bin->count;
  double low = INFINITY, high = -INFINITY;
  for (int64_t n = 0; n < count; n++) {
    low = bin->us[n] < low ? bin->us[n] : low;
    high = bin->us[n] > high ? bin->us[n] : high;
  }
  int64_t most = count / BUCKET_SIZE + 1;
  if (most > MOST_BUCKETS) most = MOST_BUCKETS;
  const double scale = high > low ? (double)(most - 1) / (high - low) : 0.0;
  bin->bucket_count = most;
  for (int64_t q = 0; q <= most; q++) bin->begin[q] = 0;
  for (int64_t q = 0; q < most; q++) {
    bin->first_us[q] = INFINITY;
    bin->last_us[q] = -INFINITY;
  }
  for (int64_t k = 0; k < most * branches; k++) bin->best_macs[k] = -INFINITY;
  for (int64_t k = 0; k < most * both; k++) bin->best_rewards[k] = -INFINITY;
  for (int64_t n = 0; n < count; n++) {
    const double us = bin->us[n], macs = bin->macs[n];
    const int64_t q = (int64_t)((us - low) * scale), at = q * branches + bin->branch[n];
    bin->bucket[n] = q;
    bin->begin[q + 1]++;
    bin->first_us[q] = us < bin->first_us[q] ? us : bin->first_us[q];
    bin->last_us[q] = us > bin->last_us[q] ? us : bin->last_us[q];
    bin->best_macs[at] = macs > bin->best_macs[at] ? macs : bin->best_macs[at];
    raise(bin->best_rewards + at * bin->lanes, bin, relaxations, n);
  }
  for (int64_t q = 0; q < most; q++) bin->begin[q + 1] += bin->begin[q];
  for (int64_t n = count - 1; n >= 0; n--) bin->order[--bin->begin[bin->bucket[n] + 1]] = n;
  for (int64_t q = 0; q < most; q++) bin->begin[q] = bin->begin[q + 1];
  bin->begin[most] = count;
  for (int64_t k = branches; k < most * branches; k++) { /* what was best before is so still */
    const double before = bin->best_macs[k - branches];
    bin->best_macs[k] = before > bin->best_macs[k] ? before : bin->best_macs[k];
  }
  for (int64_t k = both; k < most * both; k++) {
    const double before = bin->best_rewards[k - both];
    bin->best_rewards[k] = before > bin->best_rewards[k] ? before : bin->best_rewards[k];
  }
}

INLINE int has_capacity(const Segment *segment, const double *macs) {
  double largest = -INFINITY, sum = 0.0;
  for (int64_t b = 0; b < segment->option->branches; b++) {
    largest = macs[b] > largest ? macs[b] : largest;
    sum += macs[b];
  }
  return sum >= segment->option->bounds.macs && largest >= segment->option->bounds.main_macs;
}

/* Equal ones stay in the order of their numbers, as a stable sort leaves them. */
INLINE int is_behind(int64_t first, int64_t second, const double *us) {
  return us[first] > us[second] || (us[first] == us[second] && first > second);
}

INLINE void sort_by_latency(int64_t *numbers, int64_t count, const double *us) {
  for (int64_t gap = count > 12 ? count / 3 : 1; gap > 0; gap = gap > 1 && gap < 4 ? 1 : gap / 3) {
    for (int64_t n = gap; n < count; n++) {
      const int64_t number = numbers[n];
      int64_t m = n;
      for (; m >= gap && is_behind(numbers[m - gap], number, us); m -= gap)
        numbers[m] = numbers[m - gap];
      numbers[m] = number;
    }
  }
}

/* Begin to go through a bucket: its members by latency, and what is best before it. */
INLINE void enter(Bin *bin, int64_t q) {
  const int64_t both = bin->branches * bin->lanes;
  sort_by_latency(bin->order + bin->begin[q], bin->begin[q + 1] - bin->begin[q], bin->us);
  for (int64_t b = 0; b < bin->branches; b++)
    bin->branch_macs[b] = q ? bin->best_macs[(q - 1) * bin->branches + b] : -INFINITY;
  for (int64_t k = 0; k < both; k++)
    bin->rewards[k] = q ? bin->best_rewards[(q - 1) * both + k] : -INFINITY;
}

INLINE void pass(Bin *bin, const Relaxations *relaxations, int64_t option) {
  const int64_t b = bin->branch[option];
  if (bin->macs[option] > bin->branch_macs[b]) bin->branch_macs[b] = bin->macs[option];
  raise(bin->rewards + b * bin->lanes, bin, relaxations, option);
}

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

/* Return how many options all branches have, or their samples; one more, since each is written before it is known to
 * keep pace. */
INLINE int64_t most_options(const Segment *segment) {
  int64_t most = 1;
  for (int64_t b = 0; b < segment->option->branches; b++) {
    const BranchTable *table = segment->option->tables[b];
    const int64_t step = sample_step(segment, table);
    most += (table->options + step - 1) / step * (segment->entries[b]->us[1] ? 2 : 1);
  }
  return most;
}

/* Return the memory behind a bin, NULL without any. */
static double *allocate(Bin *bin, const Segment *segment) {
  const int64_t branches = segment->option->branches, rows = segment->relaxations->rows;
  const int64_t lanes = (rows + LANES - 1) / LANES * LANES, both = branches * lanes;
  const int64_t buckets = MOST_BUCKETS + 1;
  const int64_t most = most_options(segment);
  const int64_t doubles = 4 * most + buckets * (2 + both + branches) + both + branches;
  const int64_t numbers = 4 * most + buckets + 1;
  double *memory = malloc(sizeof(double) * (size_t)doubles + sizeof(int64_t) * (size_t)numbers);
  if (!memory) return NULL;
  double *at = memory + 4 * most;
  int64_t *number = (int64_t *)(memory + doubles);
  *bin = (Bin){branches, lanes, 0, 0, memory, memory + most, memory + 2 * most, memory + 3 * most,
               number, number + most, number + 2 * most, number + 4 * most, number + 3 * most,
               at, at + buckets, at + 2 * buckets, at + buckets * (2 + both),
               at + buckets * (2 + both + branches), at + buckets * (2 + both + branches) + both};
  return memory;
}

/* Costs of one bin's deadlines that meet demands, with losses, `[row][deadline]`; return how many
 * there are. */
INLINE int64_t cost_table(Bin *bin, const Segment *segment, const double *losses_us, int64_t most,
                          double *costs_us) {
  const int64_t branches = segment->option->branches, rows = segment->relaxations->rows;
  int64_t column = 0;
  for (int64_t q = 0; q < bin->bucket_count; q++) {
    if (!has_capacity(segment, bin->best_macs + q * branches)) continue;
    enter(bin, q);
    for (int64_t m = bin->begin[q]; m < bin->begin[q + 1]; m++) {
      pass(bin, segment->relaxations, bin->order[m]);
      if (!has_capacity(segment, bin->branch_macs)) continue;
      for (int64_t r = 0; r < rows; r++) {
        double reward = bin->rewards[r];
        for (int64_t b = 1; b < branches; b++) reward += bin->rewards[b * bin->lanes + r];
        costs_us[r * most + column] = (bin->us[bin->order[m]] - reward) + losses_us[r];
      }
      column++;
    }
  }
  return column;
}

#endif
