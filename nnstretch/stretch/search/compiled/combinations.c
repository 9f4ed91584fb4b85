/* Combinations of branches of one segment option at one merged width. */
#include "bins.h"
#include "order.h"
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
  double *ahead_us, *reward_us, *loss_us, *macs; /* [option] */
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
  list_members(bin, NULL);
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
    if (bin->bucket[n] == NO_BUCKET) continue;
    const int64_t at = first_at_least(choices->deadline_us, deadlines, bin->us[n]);
    if (at == deadlines) continue;
    const Option option = option_at(bin, relaxations, n);
    double reward = relaxations->per_mac[row] * option.macs;
    reward -= relaxations->per_channel[row] * option.channels_out;
    reward += option.params_us;
    choices->macs[n] = option.macs;
    choices->ahead_us[n] = choices->deadline_us[at];
    choices->reward_us[n] = reward;
    choices->loss_us[n] = -reward;
    if (choices->remaining_us[option.branch][at] - reward <= slack_us)
      choices->numbers[option.branch][choices->counts[option.branch]++] = n;
  }
}

INLINE void join(Pairs *kept, const Choices *choices, const Segment *segment) {
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
      const double macs[2] = {choices->macs[first], choices->macs[second]};
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
VECTORIZED int64_t candidate_pairs(const SegmentOption *option, const EntryBins *const *entries,
                                   const Minorants *behind, const Prices *prices, int64_t rows,
                                   const int64_t *relaxation_numbers, double slack_us,
                                   int64_t most_kept, int64_t *options /* [branch][most kept] */,
                                   double *discarded_us) {
  double prices_memory[relaxations_size(rows)];
  Relaxations relaxations;
  set_relaxations(&relaxations, prices_memory, option, behind, prices, relaxation_numbers, rows);
  const Segment segment = {option, entries, &relaxations, 0, 1, NULL};
  const int64_t most = most_options(&segment);
  Bin bin;
  double *memory = allocate(&bin, &segment), tail_us = 0.0;
  double *costs_us = malloc(sizeof(double) * (size_t)((rows > 7 ? rows : 7) * most));
  int64_t *numbers = malloc(sizeof(int64_t) * (size_t)(2 * most));
  Pair *pairs = malloc(sizeof(Pair) * (size_t)(2 * most_kept + 1));
  Pairs kept = {pairs, 0, most_kept, slack_us, INFINITY};
  const int is_short = !memory || !costs_us || !numbers || !pairs;
  if (!is_short) {
    collect(&bin, &segment, 0);
    distribute(&bin, &relaxations);
    const int64_t row = highest_row(&bin, &segment, most, costs_us, &tail_us);
    Choices choices = {costs_us, {costs_us + most, costs_us + 2 * most}, costs_us + 3 * most,
                       costs_us + 4 * most, costs_us + 5 * most, costs_us + 6 * most, {numbers, numbers + most}, {0, 0}};
    kept.slack_us = slack_us - tail_us;
    if (row >= 0) {
      const int64_t deadlines = list_deadlines(&choices, &bin, &segment, row);
      promise(&choices, &bin, &relaxations, row, deadlines, kept.slack_us);
      sort_by_latency(choices.numbers[1], choices.counts[1], choices.loss_us);
      join(&kept, &choices, &segment);
    }
    for (int64_t k = 0; k < kept.count; k++)
      for (int64_t b = 0; b < 2; b++)
        options[b * most_kept + k] =
            option_at(&bin, &relaxations, pairs[k].numbers[b]).choice;
    *discarded_us = kept.discarded_us + tail_us;
  }
  free(pairs);
  free(numbers);
  free(costs_us);
  free(memory);
  return is_short ? -1 : kept.count;
}
