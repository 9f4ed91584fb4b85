/* Least bounds first, and rows that no other makes pointless. */
#ifndef ORDER_H
#define ORDER_H
#include "kernels.h"

/* Options of two branches with the bound of both, or one row. */
typedef struct {
  double bound_us;
  int64_t numbers[2];
} Pair;

/* Move the `count` least of more pairs ahead; return the least bound of the others. */
double keep_least(Pair *pairs, int64_t total, int64_t count);

/* `pareto_rows`: whether each row is one; `values` are [column][row], `kept` [row] to work with. */
void pareto_rows(int64_t rows, int64_t columns, const double *values, const uint8_t *is_first,
                 int64_t *kept, uint8_t *is_kept);

#endif
