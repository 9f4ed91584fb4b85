"""The space of plans and what its parts cost, as tables.

search_space.py    meeting points, widths, and the units between cuts
branch_depths.py   depths of branches, and the units that each keeps
team.py            what processors of a segment pay, whatever the segment
cost_tables.py     cost tables of all branches
original_costs.py  what the original layers between two cuts cost
"""
