"""Policies: which waiting task goes to which processor now.

static_placement.py  NN-Stretch Algorithm 1
movable_tasks.py     what a policy keeps that moves tasks of another
failover.py          where tasks of a lost processor go
rebalancing.py       tasks of slow processors go elsewhere
"""
