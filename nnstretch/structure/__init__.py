"""Structure of a graph: cuts, repeated units, channel groups, fused kernels, work.

Pure functions, no torch.

    cuts.py               cuts, sections
    address_ranges.py     free ranges between taken ones
    blocks.py             units, repeats, stages of a CNN
    channel_groups.py     channel groups
    channel_analysis.py   union-find over channel groups
    channel_slices.py     dimensions as slices of channel groups
    channel_rules/        channel propagation, rule table
    kernel_fusion.py      graph -> fused kernels
    kernel_operators.py   free operators, kinds of kernels
    kernel_description.py fused nodes -> kernel with dimensions and counts
    layout_conversion.py  blocked <-> plain copies
    padding.py            explicit padding
    constants.py          what no input changes
    arguments.py          arguments of operators by position
    macs.py               MACs per operator
    segment_cost.py       the segment latency formula
    slices/               part of an output -> parts of inputs
"""
