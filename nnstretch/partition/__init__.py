"""Pipeline stages for a stream of inputs.

Split, connected, assigned to processors, assembled into a bundle.

partition.py          graph divided among processors
compute_layers.py     units of an automatic split
topological_cuts.py   downward-closed sets of units
stage_costs.py        cost of every possible stage
solver.py             DP over (frontier, processors used)
lower_bound.py        LP-dual bottleneck bound
split_points.py       split points by hand
split_graph.py        graph -> sub-graph per stage
module_graph.py       modules and connections, rule book
module_graph_text.py  module graph as text / dict
connect.py            TVM-style connect() API
branched_stages.py    stages that are branched themselves
build_manifest.py     module graph + files -> manifest
export.py             partition -> bundle
"""
