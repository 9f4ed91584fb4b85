"""Inner loops of the search in C, for where a compiler was at hand when the package was installed.

Without it the same is computed by arrays, in several times the time.

library.py       the shared library, and its structures
kernels.h        structures that the loops read
bins.h           options of a segment's branches in one bin of merged widths, by latency
relaxations.h    ways to relax a segment option
option_bounds.c  bounds through a segment option over merged widths
deadlines.c      latencies of branches, and what those that keep each earn
branch_join.c    branches joined one by one, at one merged width
admissible.c     combinations that may still be part of a good plan
order.c, .h      least bounds first, and rows that no other makes pointless
"""
