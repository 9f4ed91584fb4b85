"""Slices: which part of each input an operator reads to compute a part of its output.

rules.py          rule of every kind of operator
operator_sets.py  kinds that share a rule
windows.py        convolutions and poolings, which read a halo
views.py          reshapes, transpositions, selections, concatenations
mixing.py         products, norms, reductions, tables: operators that read a dimension whole
"""
