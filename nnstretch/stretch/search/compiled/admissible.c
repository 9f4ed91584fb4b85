/* Combinations of an option's branches that may still be part of a good plan. */
#include "order.h"

/* Combinations as columns, with what completes each of them at several multipliers. */
typedef struct {
  int64_t most, branches, holders, prices;
  double *latency_us, *macs, *params; /* [combination] */
  int64_t *width;
  double *held;     /* [combination][holder] */
  double *after_us; /* [price][most] */
  int64_t *options; /* [branch][most] */
} Combinations;

/* What one branch costs. */
typedef struct {
  double us, macs, params;
} BranchCost;

INLINE BranchCost branch_cost(const BranchTable *table, const EntryBins *entry, int64_t option) {
  const int64_t column = table->first[option];
  BranchCost cost = {INFINITY, 0.0, 0.0};
  for (int kind = 0; kind < KINDS && entry->us[kind]; kind++) {
    const double us = entry->us[kind][column] + table->behind_us[kind][option];
    cost.us = us < cost.us ? us : cost.us;
  }
  cost.macs = entry->macs[0][column] + table->macs[option];
  cost.params = entry->params[0][column] + table->params[option];
  return cost;
}

/* `SegmentOption.admissible_combinations`: set one row; return whether no rule refuses it. */
INLINE int price(const Combinations *rows, int64_t row, const SegmentOption *option,
                 const EntryBins *const *entries, const int64_t *held_by, int64_t width_in) {
  double slowest_us = -INFINITY, largest_macs = -INFINITY, copies_us = -INFINITY;
  double macs = 0.0, params = 0.0, params_of[option->branches];
  int64_t width = 0;
  for (int64_t b = 0; b < option->branches; b++) {
    const BranchTable *table = option->tables[b];
    const int64_t number = rows->options[b * rows->most + row];
    const BranchCost cost = branch_cost(table, entries[b], number);
    const double bytes = option->channel_bytes_in * (double)width_in;
    const double copy_us = option->copy_in_us[b] + option->copy_in_us_per_kib[b] * bytes / 1024 +
                           table->copy_out_us[number];
    slowest_us = cost.us > slowest_us ? cost.us : slowest_us;
    largest_macs = cost.macs > largest_macs ? cost.macs : largest_macs;
    copies_us = copy_us > copies_us ? copy_us : copies_us;
    macs += cost.macs;
    params += params_of[b] = cost.params;
    width += table->channels_out[number];
  }
  const double merge_us = option->merge_us + option->merge_us_per_channel * (double)width;
  rows->latency_us[row] = slowest_us + option->sync_us + merge_us;
  rows->macs[row] = macs;
  rows->params[row] = params;
  rows->width[row] = width;
  for (int64_t h = 0; h < rows->holders; h++) {
    const int64_t by = held_by[h]; /* a branch; behind the last, all of them; -1: none */
    rows->held[row * rows->holders + h] =
        by < 0 ? 0.0 : (by == option->branches ? params : params_of[by]);
  }
  if (!(slowest_us < INFINITY)) return 0;
  if (option->branches == 1) return 1;
  const SegmentBounds *bounds = &option->bounds;
  return slowest_us <= bounds->branch_us &&
         copies_us + option->sync_us + merge_us <= bounds->communication_us &&
         macs >= bounds->macs && largest_macs >= bounds->main_macs;
}

/* `LabelBounds.after_us` of one row; return whether all are below their limits. */
INLINE int complete(const Combinations *rows, int64_t row, const SegmentOption *option,
                    const Completions *completions, const double *limits_us) {
  int64_t place = 0, count = completions->left_us ? completions->widths : 0;
  int is_good = 1;
  while (count > 0) { /* where the merged width is, or the first above */
    const int64_t half = count / 2;
    const int is_before = completions->merged_widths[place + half] < rows->width[row];
    place = is_before ? place + half + 1 : place;
    count = is_before ? count - half - 1 : half;
  }
  for (int64_t p = 0; p < completions->prices; p++) {
    const double work_us = completions->per_mac[p] * rows->macs[row] +
                           completions->per_param[p] * rows->params[row];
    double after_us = rows->latency_us[row] - work_us;
    after_us -= completions->per_meeting[p] * option->meetings;
    if (completions->left_us) after_us += completions->left_us[p * completions->widths + place];
    rows->after_us[p * rows->most + row] = after_us;
    is_good &= after_us < limits_us[p];
  }
  return is_good;
}

/* `NetworkLimits.fits` of one row. */
INLINE int fits(const Combinations *rows, int64_t row, const NetworkLimits *limits) {
  for (int64_t h = 0; h < limits->holders; h++)
    if (rows->held[row * rows->holders + h] > limits->max_held[h]) return 0;
  return 1;
}

/* Keep the `most` rows that take least to complete; return how many are kept. */
INLINE int64_t keep_few(const Combinations *rows, Pair *kept, int64_t count, int64_t most,
                        double *discarded_us) {
  if (count <= most) return count;
  for (int64_t k = 0; k < count; k++) kept[k].bound_us = rows->after_us[kept[k].numbers[0]];
  const double least_us = keep_least(kept, count, most);
  *discarded_us = least_us < *discarded_us ? least_us : *discarded_us;
  return most;
}

/* `compared_resources`, less of which is better here, behind width and latency: [column][row].
 * Return how many columns there are. */
INLINE int64_t list_columns(double *columns, const Combinations *rows, const Pair *kept,
                            int64_t count, const NetworkLimits *limits) {
  int64_t n = 2;
  for (int64_t k = 0; k < count; k++) {
    const int64_t row = kept[k].numbers[0];
    n = 2;
    columns[k] = (double)rows->width[row];
    columns[count + k] = rows->latency_us[row];
    if (limits->min_macs > 0) columns[n++ * count + k] = -rows->macs[row];
    if (limits->max_macs < INFINITY) columns[n++ * count + k] = rows->macs[row];
    if (limits->min_params > 0) columns[n++ * count + k] = -rows->params[row];
    for (int64_t h = 0; h < limits->holders; h++)
      columns[n++ * count + k] = rows->held[row * rows->holders + h];
  }
  return n;
}

INLINE int is_before(const double *columns, int64_t count, int64_t n, int64_t a, int64_t b) {
  for (int64_t c = 0; c < n; c++) {
    const double first = columns[c * count + a], second = columns[c * count + b];
    if (first != second) return first < second;
  }
  return 0;
}

/* Sort places by columns, the first column first, equal ones as they are. */
INLINE void sort_places(int64_t *places, int64_t *spare, const double *columns, int64_t count,
                        int64_t n) {
  for (int64_t k = 0; k < count; k++) places[k] = k;
  for (int64_t size = 1; size < count; size *= 2) {
    for (int64_t low = 0; low < count; low += 2 * size) {
      const int64_t middle = low + size < count ? low + size : count;
      const int64_t high = low + 2 * size < count ? low + 2 * size : count;
      int64_t first = low, second = middle;
      for (int64_t k = low; k < high; k++) {
        const int is_second =
            first == middle || (second < high &&
                                is_before(columns, count, n, places[second], places[first]));
        spare[k] = is_second ? places[second++] : places[first++];
      }
    }
    for (int64_t k = 0; k < count; k++) places[k] = spare[k];
  }
}

/* `undominated`: return how many rows are kept; -1 without memory. */
static int64_t drop_dominated(const Combinations *rows, Pair *kept, int64_t count,
                              const NetworkLimits *limits) {
  const int64_t most = 5 + limits->holders; /* width, latency, MACs twice, parameters */
  double *columns = malloc(sizeof(double) * (size_t)(2 * most * count + 1));
  int64_t *places = malloc(sizeof(int64_t) * (size_t)(2 * count + 1));
  uint8_t *marks = malloc((size_t)(2 * count + 1));
  Pair *sorted = malloc(sizeof(Pair) * (size_t)(count + 1));
  int64_t few = columns && places && marks && sorted ? 0 : -1;
  if (!few) {
    const int64_t n = list_columns(columns, rows, kept, count, limits);
    double *values = columns + n * count;
    sort_places(places, places + count, columns, count, n);
    for (int64_t k = 0; k < count; k++) {
      sorted[k] = kept[places[k]];
      marks[k] = !k || columns[places[k]] != columns[places[k - 1]];
      for (int64_t c = 2; c < n; c++)
        values[(c - 2) * count + k] = -columns[c * count + places[k]];
    }
    pareto_rows(count, n - 2, values, marks, places, marks + count);
    for (int64_t k = 0; k < count; k++)
      if (marks[count + k]) kept[few++] = sorted[k];
  }
  free(sorted);
  free(marks);
  free(places);
  free(columns);
  return few;
}

/* Reorder the columns to the rows that are kept, through `spare`. */
INLINE void gather(double *values, const Pair *kept, int64_t count, int64_t stride,
                   double *spare) {
  for (int64_t k = 0; k < count; k++)
    for (int64_t c = 0; c < stride; c++)
      spare[k * stride + c] = values[kept[k].numbers[0] * stride + c];
  for (int64_t k = 0; k < count * stride; k++) values[k] = spare[k];
}

INLINE void gather_whole(int64_t *values, const Pair *kept, int64_t count, int64_t *spare) {
  for (int64_t k = 0; k < count; k++) spare[k] = values[kept[k].numbers[0]];
  for (int64_t k = 0; k < count; k++) values[k] = spare[k];
}

/* `admissible_extensions`: price `count` combinations and keep those that may be part of a good plan: in
 * `rows`, ahead. Return how many; -1 without memory. `discarded_us` becomes the least bound of those
 * that were left out although they may. */
int64_t admissible_combinations(const SegmentOption *option, const EntryBins *const *entries,
                                const int64_t *held_by, int64_t width_in,
                                const NetworkLimits *limits, const Completions *completions,
                                const double *limits_us, int64_t most_compared, int64_t most_kept,
                                int64_t count, const Combinations *rows, double *discarded_us) {
  const int64_t widest = rows->holders > 1 ? rows->holders : 1;
  Pair *kept = malloc(sizeof(Pair) * (size_t)(count + 1));
  double *spare = malloc(sizeof(double) * (size_t)(count * widest + 1));
  int64_t *whole = malloc(sizeof(int64_t) * (size_t)(count + 1));
  int64_t few = kept && spare && whole ? 0 : -1;
  if (!few) {
    for (int64_t row = 0; row < count; row++) {
      const int is_admissible = price(rows, row, option, entries, held_by, width_in);
      if (is_admissible && complete(rows, row, option, completions, limits_us) &&
          fits(rows, row, limits))
        kept[few++].numbers[0] = row;
    }
    few = keep_few(rows, kept, few, most_compared, discarded_us);
    few = drop_dominated(rows, kept, few, limits);
  }
  if (few >= 0) {
    few = keep_few(rows, kept, few, most_kept, discarded_us);
    double *columns[] = {rows->latency_us, rows->macs, rows->params};
    for (int c = 0; c < 3; c++) gather(columns[c], kept, few, 1, spare);
    gather(rows->held, kept, few, rows->holders, spare);
    for (int64_t p = 0; p < rows->prices; p++)
      gather(rows->after_us + p * rows->most, kept, few, 1, spare);
    gather_whole(rows->width, kept, few, whole);
    for (int64_t b = 0; b < rows->branches; b++)
      gather_whole(rows->options + b * rows->most, kept, few, whole);
  }
  free(whole);
  free(spare);
  free(kept);
  return few;
}
