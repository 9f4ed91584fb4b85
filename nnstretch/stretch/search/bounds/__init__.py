"""Lower bounds of the exact search, by Lagrangian relaxation.

multipliers.py       multipliers of a network and of a segment, affine minorants, cost-to-go
entry_bins.py        first units of branches over bins of merged widths
deadline_windows.py  deadlines that matter, and options that keep them all
lagrangian.py        bound through one segment option
relaxations.py       which ways to relax a segment option bound it best
option_bounds.py     that bound over all merged widths that an option reads
branch_costs.py      least weighted costs of one branch
separable_bounds.py  a looser and cheaper one, each branch apart
cost_to_go.py        backward recursion over the options of a space
reduced_costs.py     how far plans through an option exceed the bound of all
cutting_planes.py    which multipliers to try next (Kelley)
"""
