"""Predicted latency, MACs and parameters of plans and of everything a plan may be made of.

cost_model.py      predicted latency of graphs and plans
unit_costs.py      cost of one unit at all widths
unit_widths.py     channels of every group of a unit, given its in/out width
polynomials.py     kernel counts as quadratic polynomials in the widths
cost_arrays.py     cost tables over widths
layout_costs.py    cost of layout conversion at cuts (NCHWc runtimes)
failover_costs.py  latency of each sub-graph on the other processors
iso_mac.py         baseline: one branch of equal MACs
"""
