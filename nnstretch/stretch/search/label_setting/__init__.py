"""Label setting for the resource-constrained shortest path through cuts and merged widths.

labels.py        labels and whole paths
dominance.py     which rows no other row makes pointless
combinations.py  branch combinations of an option whose bound is good enough
label_search.py  one run over all cuts
"""
