/* Options of the branches of a segment in one bin of merged widths, by latency. */
#ifndef BINS_H
#define BINS_H
#include "kernels.h"

/* Options of one branch behind first units of one kind, in one bin. */
typedef struct {
  const BranchTable *table;
  const double *ahead_us, *ahead_macs, *ahead_params, *behind_us; /* of the first units; the rest */
  int64_t branch, begin, count, step; /* number `begin` + n is row n x `step` of the table */
} Part;

/* What one option is worth. */
typedef struct {
  double macs, channels_out, params_us;
  int64_t branch, choice; /* the row in its branch's table */
} Option;

/* Options of all branches in one bin, and buckets of equal spans of latency. */
typedef struct {
  int64_t branches, lanes, part_count, count, bucket_count;
  Part *parts;
  double *us;      /* [option], infinite where it does not keep pace */
  uint16_t *bucket; /* [option], NO_BUCKET where it does not */
  double low_us, high_us; /* the least latency, and the most */
  double span_us;         /* of a bucket: number q begins q spans above the least */
  double *best_rewards, *best_macs; /* [bucket][branch][lane], [bucket][branch], up to its end */
  double *rewards, *branch_macs;    /* [branch][lane], [branch], to go through one bucket */
  /* The members of bucket q that `list_members` listed last are order[begin[q]] to
   * order[begin[q + 1]]; `order` is twice as long, for lists in the making. */
  int64_t *begin, *order;
} Bin;

INLINE int64_t sample_step(const Segment *segment, const BranchTable *table) {
  const int64_t step = segment->most_sampled ? table->options / segment->most_sampled : 1;
  return step > 1 ? step : 1;
}

INLINE void list_parts(Bin *bin, const Segment *segment, int64_t number) {
  bin->part_count = bin->count = 0;
  for (int64_t b = 0; b < segment->option->branches; b++) {
    const BranchTable *table = segment->option->tables[b];
    const EntryBins *entry = segment->entries[b];
    const int64_t step = sample_step(segment, table), begin = number * entry->columns;
    const int64_t count = (table->options + step - 1) / step;
    for (int kind = 0; kind < KINDS && entry->us[kind]; kind++) {
      bin->parts[bin->part_count++] =
          (Part){table, entry->us[kind] + begin, entry->macs[kind] + begin,
                 entry->params[kind] + begin, table->behind_us[kind], b, bin->count, count, step};
      bin->count += count;
    }
  }
}

INLINE void collect(Bin *bin, const Segment *segment, int64_t number) {
  list_parts(bin, segment, number);
  for (int64_t k = 0; k < bin->part_count; k++) {
    const Part *part = bin->parts + k;
    const EntryBins *entry = segment->entries[part->branch];
    const double tilt_us = entry->tilt_us * entry->spans[number];
    const double most_us = segment->option->bounds.branch_us;
    const double *ahead_us = part->ahead_us, *behind_us = part->behind_us;
    const int64_t *first = part->table->first;
    double *all_us = bin->us + part->begin;
    for (int64_t n = 0; n < part->count; n++) {
      const double us = ahead_us[first[n * part->step]] + behind_us[n * part->step];
      all_us[n] = us - tilt_us <= most_us ? us : INFINITY;
    }
  }
}

INLINE Option part_option(const Part *part, double per_param, int64_t number) {
  const int64_t choice = (number - part->begin) * part->step, column = part->table->first[choice];
  double params_us = 0.0;
  if (per_param != 0.0)
    params_us = per_param * (part->ahead_params[column] + part->table->params[choice]);
  return (Option){part->ahead_macs[column] + part->table->macs[choice],
                  (double)part->table->channels_out[choice], params_us, part->branch, choice};
}

INLINE Option option_at(const Bin *bin, const Relaxations *relaxations, int64_t number) {
  const Part *part = bin->parts;
  while (number >= part->begin + part->count) part++;
  return part_option(part, relaxations->per_param, number);
}

/* Raise the best rewards of a branch to those of an option. */
INLINE void raise(double *best, const Relaxations *relaxations, int64_t lanes, Option option) {
  const double *per_mac = relaxations->per_mac, *per_channel = relaxations->per_channel;
  for (int64_t low = 0; low < lanes; low += LANES) {
    for (int64_t r = low; r < low + LANES; r++) {
      double reward = per_mac[r] * option.macs - per_channel[r] * option.channels_out;
      reward += option.params_us;
      best[r] = reward > best[r] ? reward : best[r];
    }
  }
}

/* Note what is best in each bucket of one part, and in which bucket each option is. */
INLINE void fill_buckets(Bin *bin, const Part *read_part, const Relaxations *read_relaxations,
                         double scale) {
  /* Copies, which no store below can change, stay in registers. */
  const Part part = *read_part;
  const Relaxations relaxations = *read_relaxations;
  const int64_t lanes = bin->lanes, stride = bin->branches;
  const double low_us = bin->low_us, *all_us = bin->us;
  double *best_macs = bin->best_macs + part.branch;
  double *best_rewards = bin->best_rewards + part.branch * lanes;
  uint16_t *bucket = bin->bucket;
  for (int64_t n = part.begin; n < part.begin + part.count; n++) {
    const double us = all_us[n];
    bucket[n] = NO_BUCKET;
    if (!(us < INFINITY)) continue;
    const int64_t q = (int64_t)((us - low_us) * scale);
    const Option option = part_option(&part, relaxations.per_param, n);
    double *macs = best_macs + q * stride;
    bucket[n] = (uint16_t)q;
    *macs = option.macs > *macs ? option.macs : *macs;
    raise(best_rewards + q * stride * lanes, &relaxations, lanes, option);
  }
}

/* What is best in one bucket is so in the next. */
INLINE void carry_on(double *best, int64_t buckets, int64_t columns) {
  for (int64_t q = 1; q < buckets; q++) {
    const double *restrict before = best + (q - 1) * columns;
    double *restrict now = best + q * columns;
    for (int64_t k = 0; k < columns; k++) now[k] = before[k] > now[k] ? before[k] : now[k];
  }
}

INLINE void set_ends(Bin *bin) {
  double low[LANES], high[LANES];
  for (int64_t k = 0; k < LANES; k++) low[k] = INFINITY, high[k] = -INFINITY;
  for (int64_t n = 0; n < bin->count; n += LANES)
    for (int64_t k = 0; k < LANES; k++) {
      const double us = bin->us[n + k];
      low[k] = us < low[k] ? us : low[k];
      high[k] = us > high[k] && us < INFINITY ? us : high[k];
    }
  for (int64_t k = 1; k < LANES; k++) {
    low[0] = low[k] < low[0] ? low[k] : low[0];
    high[0] = high[k] > high[0] ? high[k] : high[0];
  }
  bin->low_us = low[0];
  bin->high_us = high[0];
}

/* Put options into buckets, and note what is best up to the end of each. */
INLINE void distribute(Bin *bin, const Relaxations *relaxations) {
  const int64_t branches = bin->branches, both = branches * bin->lanes;
  for (int64_t k = 0; k < LANES; k++) bin->us[bin->count + k] = INFINITY;
  set_ends(bin);
  const double range_us = bin->high_us - bin->low_us;
  int64_t most = bin->low_us < INFINITY ? bin->count / BUCKET_SIZE + 1 : 0;
  if (most > MOST_BUCKETS) most = MOST_BUCKETS;
  const double scale = range_us > 0.0 ? (double)(most - 1) / range_us : 0.0;
  bin->bucket_count = most;
  bin->span_us = scale > 0.0 ? 1.0 / scale : 0.0;
  for (int64_t k = 0; k < most * branches; k++) bin->best_macs[k] = -INFINITY;
  for (int64_t k = 0; k < most * both; k++) bin->best_rewards[k] = -INFINITY;
  for (int64_t k = 0; k < bin->part_count; k++)
    fill_buckets(bin, bin->parts + k, relaxations, scale);
  carry_on(bin->best_macs, most, branches);
  carry_on(bin->best_rewards, most, both);
}

/* A latency that no member of a bucket is below, and one that none is above. */
INLINE double bucket_begin_us(const Bin *bin, int64_t q) {
  return bin->low_us + ((double)q - ROUNDING) * bin->span_us;
}

INLINE double bucket_end_us(const Bin *bin, int64_t q) {
  if (q + 1 == bin->bucket_count) return bin->high_us;
  return bin->low_us + ((double)(q + 1) + ROUNDING) * bin->span_us;
}

/* List the members of buckets, of all or of those that are wanted. */
INLINE void list_members(Bin *bin, const uint8_t *is_wanted) {
  const int64_t most = bin->bucket_count;
  int64_t listed = 0, *wanted = bin->order + bin->count;
  for (int64_t n = 0; n < bin->count; n++) {
    const int64_t q = bin->bucket[n];
    wanted[listed] = n;
    listed += q != NO_BUCKET && (!is_wanted || is_wanted[q]);
  }
  for (int64_t q = 0; q <= most; q++) bin->begin[q] = 0;
  for (int64_t k = 0; k < listed; k++) bin->begin[bin->bucket[wanted[k]] + 1]++;
  for (int64_t q = 0; q < most; q++) bin->begin[q + 1] += bin->begin[q];
  for (int64_t k = listed - 1; k >= 0; k--)
    bin->order[--bin->begin[bin->bucket[wanted[k]] + 1]] = wanted[k];
  for (int64_t q = 0; q < most; q++) bin->begin[q] = bin->begin[q + 1];
  bin->begin[most] = listed;
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

INLINE void pass(Bin *bin, const Relaxations *relaxations, int64_t number) {
  const Option option = option_at(bin, relaxations, number);
  double *macs = bin->branch_macs + option.branch;
  *macs = option.macs > *macs ? option.macs : *macs;
  raise(bin->rewards + option.branch * bin->lanes, relaxations, bin->lanes, option);
}

/* Return how many options all branches have, or their samples, and one more, so that there is memory
 * for one at least. */
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
  const int64_t most = most_options(segment);
  const int64_t doubles = most + LANES + (MOST_BUCKETS + 1) * (both + branches);
  const size_t of_doubles = sizeof(double) * (size_t)doubles;
  const size_t of_numbers = sizeof(int64_t) * (size_t)(2 * most + MOST_BUCKETS + 2);
  const size_t of_parts = sizeof(Part) * (size_t)(KINDS * branches);
  double *memory = malloc(of_doubles + of_numbers + of_parts + sizeof(uint16_t) * (size_t)most);
  if (!memory) return NULL;
  double *best_rewards = memory + most + LANES, *best_macs = best_rewards + MOST_BUCKETS * both;
  double *rewards = best_macs + MOST_BUCKETS * branches;
  int64_t *order = (int64_t *)(memory + doubles), *begin = order + 2 * most;
  Part *parts = (Part *)(begin + MOST_BUCKETS + 2);
  *bin = (Bin){branches, lanes, 0, 0, 0, parts, memory, (uint16_t *)(parts + KINDS * branches),
               0.0, 0.0, 0.0, best_rewards, best_macs, rewards, rewards + both, begin, order};
  return memory;
}

/* Costs of one bin's deadlines that meet demands, with losses, `[row][deadline]`; return how many
 * there are. */
INLINE int64_t cost_table(Bin *bin, const Segment *segment, const double *losses_us, int64_t most,
                          double *costs_us) {
  const int64_t branches = segment->option->branches, rows = segment->relaxations->rows;
  int64_t column = 0;
  list_members(bin, NULL);
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
