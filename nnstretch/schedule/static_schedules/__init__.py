"""Schedules that are made before anything runs: pure functions from a task graph to a Trace.

gaps.py              free time of one processor
partial_schedule.py  tasks inserted into gaps, ready tasks by priority
ranks.py             upward and downward rank, optimistic cost table
insertion.py         HEFT, CPOP, PEFT
greedy.py            Min-Min, Max-Min, earliest start, MCT, MET, OLB
planned_jobs.py      the same as a policy: each arriving job into the gaps of earlier ones
planned_slots.py     planned jobs, and their places in the plan
optimal.py           the shortest schedule, by constraint programming
table.py             every static policy with its source, tie rule and cost
"""
