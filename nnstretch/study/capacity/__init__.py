"""The capacity experiment: how shallow and narrow branches may be, judged by training.

experiment.py  the experiment
plans.py       variants as plans
bounds.py      bounds on depth and width from accuracies
journal.py     finished trainings
"""
