"""Inside one accelerator: sub-graph instances on chip, simulated and executed.

machine/            descriptions and rates of machines
network_batches.py  one network at any batch
even_bags.py        bags of equally many rows of a table -> look-ups and sums
graph_rewriter.py   attention, pieces and sizes -> plain operators
chip_graph.py       operators as an accelerator computes them
operator_work.py    what they ask of matrix and vector unit
steps/              the steps of scheduling, each a pure function
engines/            tile loops, addresses, instructions, trace
policies.py         ddr, gb, lb, ordered, graphturbo
best_schedule.py    best: what simulation likes best
optimum/            all plans of a small graph, and a climb towards the fastest
schedule_file.py    a schedule by hand
pricing/            kernels and branches priced for a search
bounds.py           the rate that no schedule beats
torch_call.py       a part of an operator's output, with torch
execute.py          the schedule carried out in memory of the planned layout
explain.py          rules and numbers behind a step, a group, a tensor
chip_pictures.py    what pictures of a schedule show, as JSON
sweep.py            throughput against one field of the description
accelerate.py       a network on a machine, as JSON
"""
