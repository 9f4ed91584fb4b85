"""Pipeline stages for a stream of inputs: split, assigned to processors, connected, exported.

partition.py          graph divided among processors
search/               units, cuts, costs, DP, lower bound
measured.py           repartition by measured times
branched_stages.py    a plan's segments as stages
split_points.py       split points by hand
split_graph.py        graph -> sub-graph per stage
module_graph.py       modules, connections and their rules
module_graph_text.py  module graph as text / dict
connect.py            TVM-style connect() API
stage_modules.py      stages as modules; Python stages
build_manifest.py     module graph + files -> manifest
export.py             partition -> bundle
pieces.py             pieces of any cut -> bundle
partition_json.py     partition -> the contract's JSON
"""
