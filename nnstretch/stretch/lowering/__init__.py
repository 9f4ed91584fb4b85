"""A plan and a graph become the graph of each branch.

lower.py               plan + graph -> graph per branch
network_analysis.py    stages, cuts and sections of a network, analyzed once
section.py             a section of the network at one depth, any width
meeting_points.py      which cuts may be meeting points
depth_scaling.py       drop / repeat blocks
width_scaling.py       width -> ratio of each channel group
gates.py               gates and attention: channels that are no width of a block
channel_allocation.py  distribute channels over groups
resize_graph.py        graph at other widths
adapters.py            1x1 conv + BN where widths meet
activations.py         activation substitution
two_branch_plan.py     plain two-branch plan for any network
"""
