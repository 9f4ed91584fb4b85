"""Search for the split: which layers, on which processors.

compute_layers.py     units that a split moves around
topological_cuts.py   downward-closed sets of units
stage_costs.py        cost of every possible stage
solver.py             DP over (frontier, processors used)
lower_bound.py        LP-dual bottleneck bound
"""
