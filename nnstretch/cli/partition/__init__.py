"""`partition`: split by prediction, by a plan's branches, or by measuring.

partition.py    the verb
options.py      `--cores`, `--python-replicas`
plan_stages.py  a plan's branches as stages
measured.py     `--measure`
"""
