"""`simulate`: what a policy will do to a workload.

simulate.py       the verb
applications.py   applications of a workload, with the times of their tasks
timed_tasks.py    tasks of one application with their times
workload_files.py files that a workload names
network_tasks.py  networks as tasks, cut as finely as is wanted, and copies of their data
measured.py       measured costs as a simulation wants them
measure.py        `simulate measure`: the table of them
replay.py         recorded beside simulated latencies
pool.py           the processors of a workload
result_json.py    the result as JSON data
show.py           the result as text
watcher.py        what is kept and written of the first run
sweep.py          `simulate sweep`: pools, policies, rates, trials
sweep_files.py    files that a sweep reads, by which journals of another state are told
sweep_tables.py   its page, table and pictures
"""
