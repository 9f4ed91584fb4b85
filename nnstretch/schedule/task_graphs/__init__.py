"""What holds for every schedule of a task graph, whoever made it.

lower_bounds.py   times before which no schedule ends
indexed_graph.py  a task graph by numbers
"""
