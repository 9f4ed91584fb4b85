"""`partition`: split by prediction, by a plan's branches, or by measuring.

partition.py    the verb
options.py      arguments about single stages
plan_stages.py  a plan's branches as stages
result_json.py  the result as JSON data
show.py         the result as text
"""
