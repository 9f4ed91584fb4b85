"""Task graphs and workloads on the virtual clock.

run_graph.py    one task graph under a policy of the table
application.py  what arrives, and when
settings.py     everything that one simulation depends on, and its clock
durations.py    how long tasks really take: predicted, drawn, measured or recorded
policy_setting.py    what the policy believes, and what it is made of
alone.py        the latency of an instance that has the chip to itself
simulate.py     applications that arrive, under a policy
replay.py       a server's record as a simulation
record_costs.py a table of costs from a server's record
busy_time.py    what worked beside each task of a record
latencies.py    latencies of any number of requests in bounded memory
length_over_time.py  how long a queue was over time
round_times.py  how long decisions take, by how many tasks wait
replications.py several simulations, with intervals
cedr_logs.py    what happened as CEDR's log files
"""
