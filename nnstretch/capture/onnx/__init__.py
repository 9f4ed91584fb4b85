"""An ONNX file becomes a Graph: checked, walked node by node, patterns of exporters fused.

load.py                 bytes -> checked model
inputs.py               inputs with open sizes closed
reader.py               ONNX file -> Graph
graph_builder.py        walk over the ONNX graph
translation_context.py  node being translated
names.py                names that survive
ops/                    the rule of each operator
pattern_fusion.py       exporter patterns -> one operator
subgraph.py             bundle member -> module
"""
