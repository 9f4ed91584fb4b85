"""Label setting for the resource-constrained shortest path through cuts and merged widths.

labels.py          labels and whole paths
dominance.py       which rows no other row makes pointless
branch_options.py  what branches may be, alone or several together
branch_join.py     branches of an option joined one by one
compiled_join.py   the same by compiled loops
combinations.py    branch combinations of an option whose bound is good enough
label_bounds.py    what completions of labels take at least
extensions.py      those that may extend labels to good plans
small_sums.py      pairs of labels and combinations whose bound is good enough
waiting_labels.py  those of the least bounds at one cut
label_search.py    one run over all cuts
"""
