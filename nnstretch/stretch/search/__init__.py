"""The exact search: a space of plans, lower bounds, label setting, and the proof.

search.py            `search()`: the entry point
search_space.py      meeting points, depths, widths and their cost tables
segment_options.py   one segment on one set of processors with one merge: all its branch
                     combinations
constraints.py       limits of a segment, of memory
combinations.py      branch combinations whose lower bound is below the incumbent
branch_and_bound.py  bounds + label search, until optimal
lagrangian.py        Lagrangian lower bounds
cost_to_go.py        backward recursion for the bounds
label_setting.py     label-setting for the resource-constrained shortest path
dominance.py         Pareto filters
pareto.py            epsilon-constraint fronts, sensitivity
statistics.py        size of the space, refusals by rule
explain.py           why branches may (not) meet at a cut
"""
