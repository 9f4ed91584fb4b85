/* Partial combinations of branches joined with the options of the next branch. */
#include <string.h>

#include "order.h"

/* Options of one branch or of several together, those that earn most first. */
typedef struct {
  int64_t count;
  const double *us, *remaining_us, *reward_us; /* remaining: what is left from its latency on */
  const double *macs, *largest_macs, *params, *copies_us;
  const int64_t *channels_out;
  const int64_t *by_latency; /* rows, the fastest first */
} Joinable;

/* What joined options must keep, and which of their sums dominance compares. */
typedef struct {
  double slack_us, rounding_us;
  double communication_us, main_macs, macs, sync_us, merge_us, merge_us_per_channel;
  int64_t least_width_behind, most_width_behind; /* of the branches that are not joined yet */
  int64_t is_last, drops_dominated, needs_macs, limits_macs, needs_params;
} JoinRules;

#define MOST_RESOURCES 5 /* MACs, those of the largest branch, copies, -MACs, parameters */

/* Options of one merged width that none before matches, the last first. */
typedef struct {
  double resources[MOST_RESOURCES];
  int64_t next;
} Front;

typedef struct {
  int64_t *heads; /* [width]: the first of its front; -1: none */
  Front *fronts;
  int64_t count, room;
} Dominance;

/* Pairs within the slack, of which `most` are kept. */
typedef struct {
  Pair *pairs;
  int64_t count, room, most;
  double discarded_us; /* the least bound of a pair that was left out within the slack */
} Joined;

INLINE double at_most(double value, double limit) { return value < limit ? value : limit; }
INLINE double larger(double a, double b) { return a > b ? a : b; }

/* `SegmentOption.amortises` of a merged width. */
INLINE int amortises(const JoinRules *rules, double copies_us, int64_t width) {
  const double merge_us = rules->merge_us + rules->merge_us_per_channel * (double)width;
  return copies_us + rules->sync_us + merge_us <= rules->communication_us;
}

/* Resources of a pair, more is better; return how many. */
INLINE int64_t list_resources(double *resources, const JoinRules *rules, double macs,
                              double largest_macs, double params, double copies_us, int64_t width) {
  int64_t n = 0;
  resources[n++] = rules->needs_macs ? macs : at_most(macs, rules->macs);
  if (!rules->is_last) resources[n++] = at_most(largest_macs, rules->main_macs);
  if (!amortises(rules, copies_us, width + rules->most_width_behind))
    resources[n++] = -copies_us;
  else
    resources[n++] = 0.0;
  if (rules->limits_macs) resources[n++] = -macs;
  if (rules->needs_params) resources[n++] = params;
  return n;
}

INLINE int has_as_much(const double *resources, const double *others, int64_t n) {
  int is_less = 0;
  for (int64_t k = 0; k < n; k++) is_less |= resources[k] < others[k];
  return !is_less;
}

/* Return whether an option of the same width that is no slower has as much; else add the option,
 * and drop those that it has as much as: what follows is slower than both. -1 without memory. */
INLINE int is_dominated(Dominance *dominance, int64_t width, const double *resources, int64_t n) {
  for (int64_t f = dominance->heads[width]; f >= 0; f = dominance->fronts[f].next)
    if (has_as_much(dominance->fronts[f].resources, resources, n)) return 1;
  int64_t *link = &dominance->heads[width];
  int64_t place = -1;
  while (*link >= 0) {
    const int64_t f = *link;
    if (has_as_much(resources, dominance->fronts[f].resources, n)) {
      *link = dominance->fronts[f].next;
      place = f; /* used again */
    } else {
      link = &dominance->fronts[f].next;
    }
  }
  if (place < 0) {
    if (dominance->count == dominance->room) {
      const int64_t room = 2 * dominance->room + 64;
      Front *fronts = realloc(dominance->fronts, sizeof(Front) * (size_t)room);
      if (!fronts) return -1;
      dominance->fronts = fronts;
      dominance->room = room;
    }
    place = dominance->count++;
  }
  Front *front = &dominance->fronts[place];
  memcpy(front->resources, resources, sizeof(double) * (size_t)n);
  front->next = dominance->heads[width];
  dominance->heads[width] = place;
  return 0;
}

/* Add a pair; return whether there was memory. */
INLINE int add_joined(Joined *joined, double bound_us, int64_t first, int64_t second) {
  if (joined->count == joined->room) {
    const int64_t room = 2 * joined->room + 256;
    Pair *pairs = realloc(joined->pairs, sizeof(Pair) * (size_t)room);
    if (!pairs) return 0;
    joined->pairs = pairs;
    joined->room = room;
  }
  joined->pairs[joined->count++] = (Pair){bound_us, {first, second}};
  if (joined->count < 2 * joined->most) return 1;
  joined->discarded_us = keep_least(joined->pairs, joined->count, joined->most);
  joined->count = joined->most;
  return 1;
}

/* Look at one pair; return whether there was memory. */
INLINE int look_at(Joined *joined, Dominance *dominance, const JoinRules *rules,
                   const Joinable *firsts, int64_t a, const Joinable *seconds, int64_t b) {
  const double ahead_us = larger(firsts->remaining_us[a], seconds->remaining_us[b]);
  const double bound_us = ahead_us - firsts->reward_us[a] - seconds->reward_us[b];
  if (!(bound_us <= rules->slack_us) || bound_us >= joined->discarded_us) return 1;
  const double macs = firsts->macs[a] + seconds->macs[b];
  const double largest_macs = larger(firsts->largest_macs[a], seconds->largest_macs[b]);
  if (rules->is_last && !(macs >= rules->macs && largest_macs >= rules->main_macs)) return 1;
  const double copies_us = larger(firsts->copies_us[a], seconds->copies_us[b]);
  const int64_t width = firsts->channels_out[a] + seconds->channels_out[b];
  if (!amortises(rules, copies_us, width + rules->least_width_behind)) return 1;
  if (rules->drops_dominated) {
    double resources[MOST_RESOURCES];
    const double params = firsts->params[a] + seconds->params[b];
    const int64_t n =
        list_resources(resources, rules, macs, largest_macs, params, copies_us, width);
    const int dominated = is_dominated(dominance, width, resources, n);
    if (dominated) return dominated > 0;
  }
  return add_joined(joined, bound_us, a, b);
}

/* Pair one option with all of the other side that are faster, or as fast where `with_equal` is set.
 * Return whether there was memory. */
INLINE int pair_with_faster(Joined *joined, Dominance *dominance, const JoinRules *rules,
                            const Joinable *mine, int64_t m, const Joinable *theirs,
                            int with_equal, int is_first) {
  const double us = mine->us[m];
  const double room_us = mine->remaining_us[m] - mine->reward_us[m] - rules->rounding_us;
  for (int64_t t = 0; t < theirs->count; t++) {
    const double least_us = room_us - theirs->reward_us[t];
    if (least_us > rules->slack_us || least_us >= joined->discarded_us) break;
    if (!(theirs->us[t] < us || (with_equal && theirs->us[t] == us))) continue;
    const int has_memory = is_first ? look_at(joined, dominance, rules, mine, m, theirs, t)
                                    : look_at(joined, dominance, rules, theirs, t, mine, m);
    if (!has_memory) return 0;
  }
  return 1;
}

/* `BranchJoin.join`: rows of both sides, [2][most]. Pairs come the fastest first, so that none is
 * dominated by a later one but for equal latencies. Return how many; -1 without memory.
 * `discarded_us` becomes the least bound of those left out although within the slack. */
int64_t join_branches(const JoinRules *rules, const Joinable *firsts, const Joinable *seconds,
                      int64_t most, int64_t *rows, double *discarded_us) {
  int64_t widest = 0, a = 0, b = 0;
  for (int64_t k = 0; k < firsts->count; k++)
    widest = firsts->channels_out[k] > widest ? firsts->channels_out[k] : widest;
  int64_t widest_next = 0;
  for (int64_t k = 0; k < seconds->count; k++)
    widest_next = seconds->channels_out[k] > widest_next ? seconds->channels_out[k] : widest_next;
  Joined joined = {NULL, 0, 0, most, INFINITY};
  Dominance dominance = {NULL, NULL, 0, 0};
  int has_memory = 1;
  if (rules->drops_dominated) {
    const size_t size = sizeof(int64_t) * (size_t)(widest + widest_next + 1);
    dominance.heads = malloc(size);
    has_memory = dominance.heads != NULL;
    if (has_memory) memset(dominance.heads, 0xff, size); /* -1 */
  }
  while (has_memory && (a < firsts->count || b < seconds->count)) {
    const int64_t first = a < firsts->count ? firsts->by_latency[a] : -1;
    const int64_t second = b < seconds->count ? seconds->by_latency[b] : -1;
    if (second < 0 || (first >= 0 && firsts->us[first] < seconds->us[second])) {
      has_memory = pair_with_faster(&joined, &dominance, rules, firsts, first, seconds, 0, 1);
      a++;
    } else {
      has_memory = pair_with_faster(&joined, &dominance, rules, seconds, second, firsts, 1, 0);
      b++;
    }
  }
  if (joined.count > most) {
    joined.discarded_us = keep_least(joined.pairs, joined.count, most);
    joined.count = most;
  }
  for (int64_t k = 0; k < joined.count; k++) {
    rows[k] = joined.pairs[k].numbers[0];
    rows[most + k] = joined.pairs[k].numbers[1];
  }
  *discarded_us = joined.discarded_us;
  free(dominance.fronts);
  free(dominance.heads);
  free(joined.pairs);
  return has_memory ? joined.count : -1;
}
