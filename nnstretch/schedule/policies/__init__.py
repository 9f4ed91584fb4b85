"""Policies: which ready task goes to which processor now.

static_placement.py  NN-Stretch Algorithm 1
failover.py          where tasks of a lost processor go
"""
