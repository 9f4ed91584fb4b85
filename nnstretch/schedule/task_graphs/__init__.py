"""What holds for every schedule of a task graph, whoever made it.

schedule_faults.py  the checker, which knows nothing of policies
lower_bounds.py     times before which no schedule ends
indexed_graph.py    a task graph by numbers
"""
