"""Task graphs and workloads on the virtual clock.

run_graph.py    one task graph under a policy of the table
application.py  what arrives, and when
simulate.py     applications that arrive, under a policy
latencies.py    latencies of any number of requests in bounded memory
replications.py several simulations, with intervals
cedr_logs.py    what happened as CEDR's log files
"""
