/* Ways to relax a segment option, numbered by slope and within it by price of a MAC. */
#ifndef RELAXATIONS_H
#define RELAXATIONS_H
#include "kernels.h"

INLINE int64_t all_relaxations(const SegmentOption *option, const Minorants *behind,
                               const Prices *prices) {
  return (option->is_projected ? 1 : behind->lines) * (prices->mac_shares + prices->width_shares);
}

INLINE int64_t padded(int64_t rows) { return (rows + LANES - 1) / LANES * LANES; }

/* Doubles behind so many relaxations. */
INLINE int64_t relaxations_size(int64_t rows) { return 2 * padded(rows) + 4 * rows; }

/* `candidate_relaxations` and `offsets_us`: those of the given numbers, all where there are none.
 */
INLINE void set_relaxations(Relaxations *relaxations, double *memory, const SegmentOption *option,
                            const Minorants *behind, const Prices *prices, const int64_t *numbers,
                            int64_t rows) {
  const int64_t shares = prices->mac_shares + prices->width_shares;
  const int64_t cases = option->is_projected || option->is_last ? 1 : 2;
  double *rest = memory + 2 * padded(rows);
  *relaxations = (Relaxations){rows, cases, memory, memory + padded(rows), prices->per_param,
                               rest, rest + 2 * rows, rest + 3 * rows};
  for (int64_t k = 0; k < 2 * padded(rows); k++) memory[k] = 0.0;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t number = numbers ? numbers[r] : r, line = number / shares;
    const int64_t share = number % shares, width_share = share - prices->mac_shares;
    const double slope = option->is_projected ? 0.0 : behind->slopes[line];
    const double demand = option->bounds.macs > 1.0 ? option->bounds.macs : 1.0;
    const double width_us = (slope + option->merge_us_per_channel) * option->original_width;
    double per_mac = share < prices->mac_shares
                         ? prices->mac_share[share] / option->macs_per_us
                         : prices->width_share[width_share] * width_us / demand;
    per_mac = per_mac - prices->per_mac > 0.0 ? per_mac - prices->per_mac : 0.0;
    relaxations->segment_per_mac[r] = per_mac;
    relaxations->segment_per_channel[r] = slope;
    relaxations->per_mac[r] = prices->per_mac + per_mac;
    relaxations->per_channel[r] = slope + option->merge_us_per_channel;
    double constant_us = option->sync_us + option->merge_us + per_mac * option->bounds.macs;
    constant_us -= prices->per_meeting * option->meetings;
    relaxations->offsets_us[r] = constant_us;
    if (option->is_last) continue;
    const double full_us = constant_us + behind->at_full - slope * option->original_width;
    if (cases == 2) relaxations->offsets_us[r] = constant_us + behind->bases[line];
    relaxations->offsets_us[(cases - 1) * rows + r] = full_us;
  }
}

/* `per_channel_us` of one relaxation. */
INLINE double channel_gain_us(const Relaxations *relaxations, int64_t row, int64_t branches,
                              const EntryBins *const *entries) {
  double gain_us = -entries[0]->tilt_us;
  for (int64_t b = 0; b < branches; b++)
    gain_us += relaxations->per_mac[row] * entries[b]->tilt_macs +
               relaxations->per_param * entries[b]->tilt_params;
  return gain_us;
}

#endif
