"""Policies: which waiting task goes to which processor now.

static_placement.py  NN-Stretch Algorithm 1
table.py             all policies that a name may ask for
in_turn.py           rr, random, met
in_order.py          eft, mct, olb, heft_rt, least_slack
over_pairs.py        etf, etf_start, min_min, max_min, sufferage, band
work_stealing.py     work_stealing
priority_classes.py  strict priority classes around any policy
waiting.py           waiting tasks in an order
finish.py            where a task would end or start first
movable_tasks.py     what a policy keeps that moves tasks of another
failover.py          where tasks of a lost processor go
rebalancing.py       tasks of slow processors go elsewhere
"""
