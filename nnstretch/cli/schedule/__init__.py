"""`schedule`: a task graph on processors, before anything runs.

schedule.py    the verb
show.py        its result as text
text_gantt.py  a schedule as lines of text
"""
