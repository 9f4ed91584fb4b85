"""Predicted latency, MACs and parameters of plans and of everything a plan may be made of.

cost_model.py        predicted latency of kernels, graphs and lowered plans
cost_arrays.py       costs at many widths at once
kernel_variants.py   one kernel at other widths, for predictors that are asked one by one
layout_costs.py      memory layouts of runtimes: blocked maps (NCHWc), copies at cuts
layout_states.py     layouts between the units of a branch, as states of its costs
polynomials.py       kernel counts as quadratic polynomials in the widths
unit_widths.py       widths of a unit's channel groups, from those it reads and writes
unit_polynomials.py  polynomials of one unit, for each way its kernels can look
unit_lowering.py     costs of one unit by lowering it, where polynomials do not do
adapter_costs.py     costs of adapters
unit_costs.py        costs of one unit at all widths
failover_costs.py    latency of each sub-graph on the other processors
iso_mac.py           baseline: one branch of equal MACs
"""
