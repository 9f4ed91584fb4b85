/* Inner loops of the exact search; what each computes is defined by the function of Python that is
 * named with it. Tests keep them equal: numbers to the bit, sets but for members of equal bounds.
 *
 * Times are microseconds, arrays are row-major. A row is a way to relax a segment option; a kind
 * is a first unit with an adapter (0) or without (1).
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define KINDS 2
#define LANES 4 /* rows are padded to a multiple, so that loops over them become vectors */
#define MOST_BUCKETS 256
#define BUCKET_SIZE 8 /* options in one, about */

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define VECTORIZED
#endif
#define INLINE static inline __attribute__((always_inline))

/* The checksum of this file, by which a library of another source is not used. */
#ifndef KERNELS_VERSION
#define KERNELS_VERSION 0
#endif
uint32_t kernels_version(void) { return KERNELS_VERSION; }

typedef struct {
  int64_t options;
  const double *behind_us[KINDS], *macs, *params;
  const int64_t *channels_out, *first;
} BranchTable;

typedef struct {
  int64_t columns;
  const double *us[KINDS], *macs[KINDS], *params[KINDS]; /* [bin][column]; NULL: no such kind */
  const double *spans;                                   /* [bin] */
  double tilt_us;
} EntryBins;

typedef struct {
  double branch_us, main_macs, macs;
} SegmentBounds;

typedef struct {
  int64_t rows, cases;
  const double *per_mac, *per_channel; /* [padded row], those of the network included */
  double per_param;
  const double *offsets_us; /* [case][row] */
} Relaxations;

typedef struct {
  int64_t branches, bins;
  const BranchTable *const *tables;
  const EntryBins *const *entries;
  const SegmentBounds *bounds;
  const Relaxations *relaxations;
  const int64_t *bin_numbers;
} Segment;

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

INLINE void collect(Bin *bin, const Segment *segment, int64_t number) {
  const Relaxations *relaxations = segment->relaxations;
  int64_t count = 0;
  for (int64_t b = 0; b < segment->branches; b++) {
    const BranchTable *table = segment->tables[b];
    const EntryBins *entry = segment->entries[b];
    const double tilt_us = entry->tilt_us * entry->spans[number];
    for (int kind = 0; kind < KINDS && entry->us[kind]; kind++) {
      const double *ahead_us = entry->us[kind] + number * entry->columns;
      const double *ahead_macs = entry->macs[kind] + number * entry->columns;
      const double *ahead_params = entry->params[kind] + number * entry->columns;
      for (int64_t o = 0; o < table->options; o++) {
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
        count += us - tilt_us <= segment->bounds->branch_us && us < INFINITY;
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
  for (int64_t b = 0; b < segment->branches; b++) {
    largest = macs[b] > largest ? macs[b] : largest;
    sum += macs[b];
  }
  return sum >= segment->bounds->macs && largest >= segment->bounds->main_macs;
}

INLINE void sort_by_latency(int64_t *numbers, int64_t count, const double *us) {
  for (int64_t gap = count > 12 ? count / 3 : 1; gap > 0; gap = gap > 1 && gap < 4 ? 1 : gap / 3) {
    for (int64_t n = gap; n < count; n++) {
      const int64_t number = numbers[n];
      int64_t m = n;
      for (; m >= gap && us[numbers[m - gap]] > us[number]; m -= gap)
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

/* Return how many options all branches have; one more, since each is written before it is known to
 * keep pace. */
INLINE int64_t most_options(const Segment *segment) {
  int64_t most = 1;
  for (int64_t b = 0; b < segment->branches; b++)
    most += segment->tables[b]->options * (segment->entries[b]->us[1] ? 2 : 1);
  return most;
}

/* Return the memory behind a bin, NULL without any. */
static double *allocate(Bin *bin, const Segment *segment) {
  const int64_t branches = segment->branches, rows = segment->relaxations->rows;
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

/* `segment_bound`: the last deadline of each bucket first, then those that may be lower. */
VECTORIZED int32_t segment_bound(const Segment *segment, const double *losses_us /* [bin][row] */,
                                 double *together_us, double *widest_us) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t branches = segment->branches, rows = relaxations->rows;
  Bin bin;
  double *memory = allocate(&bin, segment), cost_us[rows];
  if (!memory) return 1;
  const int64_t both = branches * bin.lanes;
  for (int64_t n = 0; n < segment->bins; n++) {
    Least least = {cost_us, INFINITY};
    const double *losses = losses_us + n * rows;
    for (int64_t r = 0; r < rows; r++) cost_us[r] = INFINITY;
    collect(&bin, segment, segment->bin_numbers[n]);
    distribute(&bin, relaxations);
    for (int64_t q = 0; q < bin.bucket_count; q++)
      if (bin.begin[q + 1] > bin.begin[q] && has_capacity(segment, bin.best_macs + q * branches))
        lower(&least, relaxations, losses, bin.last_us[q], bin.best_rewards + q * both, branches,
              bin.lanes, 1);
    for (int64_t q = 0; q < bin.bucket_count; q++) {
      if (bin.begin[q + 1] - bin.begin[q] < 2 ||
          !has_capacity(segment, bin.best_macs + q * branches) ||
          !lower(&least, relaxations, losses, bin.first_us[q], bin.best_rewards + q * both,
                 branches, bin.lanes, 0))
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

/* `deadline_costs`: deadlines that meet demands, and behind them infinite ones up to `most`. Return
 * how many some bin has; -1 without memory. */
VECTORIZED int64_t deadline_costs(const Segment *segment, int64_t most, double *deadline_us,
                                  double *rewards /* [branch][row][bin][deadline] */) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t branches = segment->branches, rows = relaxations->rows;
  const int64_t plane = segment->bins * most;
  Bin bin;
  double *memory = allocate(&bin, segment);
  if (!memory) return -1;
  int64_t columns = 0;
  for (int64_t n = 0; n < segment->bins; n++) {
    collect(&bin, segment, segment->bin_numbers[n]);
    distribute(&bin, relaxations);
    int64_t column = 0;
    for (int64_t q = 0; q < bin.bucket_count; q++) {
      if (!has_capacity(segment, bin.best_macs + q * branches)) continue;
      enter(&bin, q);
      for (int64_t m = bin.begin[q]; m < bin.begin[q + 1]; m++) {
        pass(&bin, relaxations, bin.order[m]);
        if (!has_capacity(segment, bin.branch_macs)) continue;
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

/* Costs of one bin's deadlines that meet demands, with losses, `[row][deadline]`; return how many
 * there are. */
INLINE int64_t cost_table(Bin *bin, const Segment *segment, const double *losses_us, int64_t most,
                          double *costs_us) {
  const int64_t branches = segment->branches, rows = segment->relaxations->rows;
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
VECTORIZED int32_t tightest_rows(const Segment *segment, const double *losses_us /* [bin][row] */,
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

/* Options of two branches with the bound of both. */
typedef struct {
  double bound_us;
  int64_t numbers[2];
} Pair;

/* Move the `count` least of more pairs ahead; return the least bound of the others. */
static double keep_least(Pair *pairs, int64_t total, int64_t count) {
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

/* Pairs within the slack, of which `most` are kept. */
typedef struct {
  Pair *pairs;
  int64_t count, most;
  double slack_us, discarded_us; /* the least bound of a pair that was left out within the slack */
} Pairs;

INLINE void add_pair(Pairs *kept, double bound_us, int64_t first, int64_t second) {
  kept->pairs[kept->count++] = (Pair){bound_us, {first, second}};
  if (kept->count < 2 * kept->most) return;
  kept->discarded_us = keep_least(kept->pairs, kept->count, kept->most);
  kept->count = kept->most;
}

/* One relaxation of one bin: deadlines that meet demands, the first at or behind every option, what
 * each option earns; and of every branch the options that the best of the other keep within the
 * slack, those that earn most first. */
typedef struct {
  double *deadline_us, *remaining_us[2]; /* [deadline] */
  double *ahead_us, *reward_us, *loss_us; /* [option] */
  int64_t *numbers[2], counts[2];
} Choices;

INLINE int64_t first_at_least(const double *rising, int64_t count, double least) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    const int is_before = rising[low + half] < least;
    low = is_before ? low + half + 1 : low;
    count = is_before ? count - half - 1 : half;
  }
  return low;
}

/* List deadlines; and for each branch, from each deadline on, the least of a deadline less the
 * other branch's best reward. */
INLINE int64_t list_deadlines(Choices *choices, Bin *bin, const Segment *segment, int64_t row) {
  int64_t column = 0;
  for (int64_t q = 0; q < bin->bucket_count; q++) {
    if (!has_capacity(segment, bin->best_macs + q * 2)) continue;
    enter(bin, q);
    for (int64_t m = bin->begin[q]; m < bin->begin[q + 1]; m++) {
      pass(bin, segment->relaxations, bin->order[m]);
      if (!has_capacity(segment, bin->branch_macs)) continue;
      const double deadline_us = bin->us[bin->order[m]];
      choices->deadline_us[column] = deadline_us;
      for (int64_t b = 0; b < 2; b++)
        choices->remaining_us[b][column] = deadline_us - bin->rewards[(1 - b) * bin->lanes + row];
      column++;
    }
  }
  for (int64_t b = 0; b < 2; b++)
    for (int64_t k = column - 2; k >= 0; k--) {
      const double later_us = choices->remaining_us[b][k + 1];
      if (later_us < choices->remaining_us[b][k]) choices->remaining_us[b][k] = later_us;
    }
  return column;
}

INLINE void promise(Choices *choices, const Bin *bin, const Relaxations *relaxations, int64_t row,
                    int64_t deadlines, double slack_us) {
  choices->counts[0] = choices->counts[1] = 0;
  for (int64_t n = 0; n < bin->count; n++) {
    const int64_t at = first_at_least(choices->deadline_us, deadlines, bin->us[n]);
    const int64_t b = bin->branch[n];
    if (at == deadlines) continue;
    double reward = relaxations->per_mac[row] * bin->macs[n];
    reward -= relaxations->per_channel[row] * bin->channels_out[n];
    reward += bin->params_us[n];
    choices->ahead_us[n] = choices->deadline_us[at];
    choices->reward_us[n] = reward;
    choices->loss_us[n] = -reward;
    if (choices->remaining_us[b][at] - reward <= slack_us)
      choices->numbers[b][choices->counts[b]++] = n;
  }
}

INLINE void join(Pairs *kept, const Choices *choices, const Bin *bin, const Segment *segment) {
  for (int64_t k = 0; k < choices->counts[0]; k++) {
    const int64_t first = choices->numbers[0][k];
    const double ahead_us = choices->ahead_us[first], reward_us = choices->reward_us[first];
    for (int64_t m = 0; m < choices->counts[1]; m++) {
      const int64_t second = choices->numbers[1][m];
      const double least_us = ahead_us - reward_us - choices->reward_us[second];
      if (least_us > kept->slack_us || least_us >= kept->discarded_us) break;
      const double other_us = choices->ahead_us[second];
      const double both_us = other_us > ahead_us ? other_us : ahead_us;
      const double bound_us = both_us - reward_us - choices->reward_us[second];
      const double macs[2] = {bin->macs[first], bin->macs[second]};
      const int is_good = bound_us <= kept->slack_us && bound_us < kept->discarded_us;
      if (is_good && has_capacity(segment, macs))
        add_pair(kept, bound_us, first, second);
    }
  }
  if (kept->count <= kept->most) return;
  kept->discarded_us = keep_least(kept->pairs, kept->count, kept->most);
  kept->count = kept->most;
}

/* The relaxation that bounds one bin highest, and what follows with it; -1 without deadlines. */
INLINE int64_t highest_row(Bin *bin, const Segment *segment, int64_t most, double *costs_us,
                           double *tail_us) {
  const Relaxations *relaxations = segment->relaxations;
  const int64_t rows = relaxations->rows;
  double losses_us[rows], highest_us = -INFINITY;
  for (int64_t r = 0; r < rows; r++) losses_us[r] = 0.0;
  const int64_t columns = cost_table(bin, segment, losses_us, most, costs_us);
  int64_t highest = -1;
  for (int64_t r = 0; columns && r < rows; r++) {
    double least_us = INFINITY, after_us = INFINITY;
    for (int64_t k = 0; k < columns; k++)
      least_us = costs_us[r * most + k] < least_us ? costs_us[r * most + k] : least_us;
    for (int64_t c = 0; c < relaxations->cases; c++) {
      const double offset_us = relaxations->offsets_us[c * rows + r];
      after_us = offset_us < after_us ? offset_us : after_us;
    }
    if (highest >= 0 && !(least_us + after_us > highest_us)) continue;
    highest = r;
    highest_us = least_us + after_us;
    *tail_us = after_us;
  }
  return highest;
}

/* `candidate_combinations` of two branches: how many there are; -1 without memory. */
VECTORIZED int64_t candidate_pairs(const Segment *segment, double slack_us, int64_t most_kept,
                                   int64_t *options /* [branch][most kept] */,
                                   double *discarded_us) {
  const int64_t rows = segment->relaxations->rows, most = most_options(segment);
  Bin bin;
  double *memory = allocate(&bin, segment), tail_us = 0.0;
  double *costs_us = malloc(sizeof(double) * (size_t)((rows > 6 ? rows : 6) * most));
  int64_t *numbers = malloc(sizeof(int64_t) * (size_t)(2 * most));
  Pair *pairs = malloc(sizeof(Pair) * (size_t)(2 * most_kept + 1));
  Pairs kept = {pairs, 0, most_kept, slack_us, INFINITY};
  const int is_short = !memory || !costs_us || !numbers || !pairs;
  if (!is_short) {
    collect(&bin, segment, segment->bin_numbers[0]);
    distribute(&bin, segment->relaxations);
    const int64_t row = highest_row(&bin, segment, most, costs_us, &tail_us);
    Choices choices = {costs_us, {costs_us + most, costs_us + 2 * most}, costs_us + 3 * most,
                       costs_us + 4 * most, costs_us + 5 * most, {numbers, numbers + most}, {0, 0}};
    kept.slack_us = slack_us - tail_us;
    if (row >= 0) {
      const int64_t deadlines = list_deadlines(&choices, &bin, segment, row);
      promise(&choices, &bin, segment->relaxations, row, deadlines, kept.slack_us);
      sort_by_latency(choices.numbers[1], choices.counts[1], choices.loss_us);
      join(&kept, &choices, &bin, segment);
    }
    for (int64_t k = 0; k < kept.count; k++)
      for (int64_t b = 0; b < 2; b++)
        options[b * most_kept + k] = bin.choice[pairs[k].numbers[b]];
    *discarded_us = kept.discarded_us + tail_us;
  }
  free(pairs);
  free(numbers);
  free(costs_us);
  free(memory);
  return is_short ? -1 : kept.count;
}

/* `pairs_below`, row by row, all looked at. */
int64_t pairs_below(int64_t prices, int64_t rows, int64_t columns,
                    const double *before_us /* [price][row] */,
                    const double *after_us /* [price][column] */, double limit_us,
                    int64_t *pairs /* [pair][2] */) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++) {
      int64_t p = 0;
      while (p < prices &&
             before_us[p * rows + row] + after_us[p * columns + column] < limit_us)
        p++;
      pairs[2 * count] = row;
      pairs[2 * count + 1] = column;
      count += p == prices;
    }
  return count;
}

/* `pareto_rows`: whether each row is one; `values` are [column][row]. */
void pareto_rows(int64_t rows, int64_t columns, const double *values, const uint8_t *is_first,
                 int64_t *kept /* [row], to work with */, uint8_t *is_kept) {
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
