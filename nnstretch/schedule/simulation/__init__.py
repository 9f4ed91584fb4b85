"""Task graphs and workloads on the virtual clock.

run_graph.py    one task graph under a policy of the table
check_trace.py  whether a trace is a schedule, whoever made it
"""
