"""The fastest plan of a small graph by trying all, and a climb towards it for any graph.

grouping_plan.py  a plan: groups with splits, their order, merges and cuts of neighbours
least_busy.py     time that no order and no binding of a plan beats
exhaustive.py     every grouping, factor and order of a graph of few operators
climb.py          steps from a plan to the fastest neighbour that simulation finds
"""
