"""Files of sub-graphs, read without their libraries and checked before a runtime sees them.

check.py           the one check of a sub-graph's file
check_onnx.py      rules of ONNX files
check_tflite.py    rules of .tflite files
edges.py           tensors at the edge of a file against the ports of its manifest
onnx_file.py       an ONNX file's graph as plain values
onnx_schema.py     fields of ONNX's messages
rule_context.py    what a rule of shapes sees of a node
shape_rules.py     shapes that operators write
window_rules.py    shapes of convolutions and pools
indexing_rules.py  shapes of picking, cutting and growing; integers that say shapes
protobuf.py        fields of protobuf messages
flatbuffer.py      tables and vectors of flatbuffers
"""
