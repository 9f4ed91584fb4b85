"""`schedule`: a task graph on processors, before anything runs.

schedule.py    the verb
show.py        its result as text
policies.py    static and run-time policies by name
text_gantt.py  a schedule as lines of text
"""
