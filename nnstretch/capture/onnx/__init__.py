"""An ONNX file becomes a Graph: checked, walked node by node, patterns of exporters fused.

load.py                 bytes -> checked model
reader.py               ONNX file -> Graph
graph_builder.py        walk over the ONNX graph
translation_context.py  node being translated
names.py                names that survive
ops_elementwise.py      activations, arithmetic; rule table
ops_indexing.py         gather, slice, pad, split
ops_layers.py           conv, pool, norm, matmul
ops_shapes.py           reshape, transpose, expand
pattern_fusion.py       exporter patterns -> one operator
subgraph.py             bundle member -> module
"""
