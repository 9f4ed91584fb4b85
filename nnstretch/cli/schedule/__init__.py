"""`schedule`: a task graph on processors, before anything runs.

schedule.py  the verb
show.py      its result as text
"""
