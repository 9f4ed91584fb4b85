"""Lower bounds of the exact search, by Lagrangian relaxation.

multipliers.py      multipliers of a network and of a segment, affine minorants, cost-to-go
entry_bins.py       first units of branches over bins of merged widths
lagrangian.py       bound through one segment option
compiled_bounds.py  the same by compiled loops
relaxations.py      which ways to relax a segment option bound it best
option_bounds.py    that bound over all merged widths that an option reads
unit_sums.py        what branches cost at prices of their MACs, for all starts of one end
weak_bounds.py      weak bounds through many segment options at once, by these sums
cost_to_go.py       backward recursion over the options of a space
reduced_costs.py    how far plans through an option exceed the bound of all
cutting_planes.py   which multipliers to try next (Kelley)
"""
