"""Segment options: the arcs of the search graph.

option_costs.py     costs of one branch, and of combinations of branches
segment_option.py   a segment, its processors, its merge, and what its branches may be
single_costs.py     costs of original layers on one processor
segment_options.py  all of a space
"""
