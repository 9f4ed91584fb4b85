"""Structure of a graph: cuts, repeated units, channel groups, fused kernels, work.

Pure functions, no torch.

    cuts.py                  cuts, sections
    blocks.py                units, repeats, stages of a CNN
    channel_groups.py        channel groups
    channel_analysis.py      union-find over channel groups
    channel_rules.py         channel propagation, rule table
    channel_rules_layers.py  channel propagation of layers with weights
    channel_rules_shapes.py  channel propagation of reshapes
    kernel_fusion.py         graph -> fused kernels
    layout_conversion.py     blocked <-> plain copies
    padding.py               explicit padding
    macs.py                  MACs per operator
    segment_cost.py          the segment latency formula
"""
