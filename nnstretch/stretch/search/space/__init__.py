"""The space of plans and what its parts cost, as tables.

search_space.py       meeting points, widths, and the units between cuts
branch_depths.py      depths of branches, and the units that each keeps
team.py               what processors of a segment pay, whatever the segment
cost_tables.py        cost tables of all branches
tail_sums.py          costs of the units behind a branch's first, summed
rejoined_branches.py  branches whose widths change with their depth
original_costs.py     what the original layers between two cuts cost
"""
