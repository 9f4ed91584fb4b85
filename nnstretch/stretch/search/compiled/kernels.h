/* Inner loops of the exact search; what each computes is defined by the function of Python that is
 * named with it. Tests keep them equal: numbers to the bit, sets but for members of equal bounds.
 *
 * Times are microseconds, arrays are row-major. A row is a way to relax a segment option; a kind
 * is a first unit with an adapter (0) or without (1).
 */
#ifndef KERNELS_H
#define KERNELS_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define KINDS 2
#define LANES 4 /* rows are padded to a multiple, so that loops over them become vectors */
#define MOST_BUCKETS 128
#define NO_BUCKET UINT16_MAX
#define BUCKET_SIZE 16 /* options in one, about */
#define ROUNDING 1e-6 /* of a bucket's span: more than its ends lose by rounding */

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define VECTORIZED
#endif
#define INLINE static inline __attribute__((always_inline))

typedef struct {
  int64_t options;
  const double *behind_us[KINDS], *copy_out_us, *macs, *params;
  const int64_t *channels_out, *first;
} BranchTable;

typedef struct {
  int64_t columns;
  const double *us[KINDS], *macs[KINDS], *params[KINDS]; /* [bin][column]; NULL: no such kind */
  const double *spans;                                   /* [bin] */
  double tilt_us, tilt_macs, tilt_params;
} EntryBins;

typedef struct {
  double communication_us, branch_us, main_macs, macs;
} SegmentBounds;

typedef struct {
  int64_t branches;
  const BranchTable *const *tables;
  const double *copy_in_us, *copy_in_us_per_kib; /* [branch] */
  SegmentBounds bounds;
  double channel_bytes_in, sync_us, merge_us, merge_us_per_channel;
  double macs_per_us;                    /* of all processors at the original's layers */
  double original_width, meetings;
  int64_t is_projected, is_last;
} SegmentOption;

/* Lines below the cost-to-go of a cut as a function of the merged width. */
typedef struct {
  int64_t lines;
  const double *slopes, *bases;
  double at_full;
} Minorants;

/* Multipliers of the network, and from which shares those of segments follow. */
typedef struct {
  double per_mac, per_param, per_meeting;
  int64_t mac_shares, width_shares;
  const double *mac_share, *width_share;
} Prices;

/* Limits of the whole network. */
typedef struct {
  double min_macs, max_macs, min_params;
  int64_t holders;
  const double *max_held; /* [holder]; none without a limit */
} NetworkLimits;

/* Bounds on what completes combinations of an option, at the multipliers of a search. */
typedef struct {
  int64_t prices;
  const double *per_mac, *per_param, *per_meeting; /* [price] */
  int64_t widths;
  const int64_t *merged_widths;
  const double *left_us; /* [price][merged width]; NULL where nothing is left */
} Completions;

/* How relaxations are chosen. */
typedef struct {
  int64_t most_sampled, most_together;
  double loosest_us; /* stands for an infinite bound in sums */
} Choice;

/* Merged widths at one cut, in bins. */
typedef struct {
  int64_t widths, bins, full_width, full_bin;
  const int64_t *starts;  /* [bin], and the number of widths */
  const double *missing; /* [width]: channels less than the widest of its bin */
} Cut;

typedef struct {
  int64_t rows, cases;
  double *per_mac, *per_channel; /* [padded row], those of the network included */
  double per_param;
  double *offsets_us;                          /* [case][row] */
  double *segment_per_mac, *segment_per_channel; /* [row] */
} Relaxations;

typedef struct {
  const SegmentOption *option;
  const EntryBins *const *entries;
  const Relaxations *relaxations;
  int64_t most_sampled; /* of a branch's options, about; 0: all are looked at */
  int64_t bins;
  const int64_t *bin_numbers;
} Segment;

#endif
