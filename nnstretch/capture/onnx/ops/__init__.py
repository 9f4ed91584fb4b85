"""The rule of each ONNX operator.

table.py        all rules by operator
elementwise.py  activations, casts, constants
arithmetic.py   operators on two or more tensors, reductions
windows.py      convolution, pooling
norms.py        normalization
products.py     matrix products, bias
resize.py       enlargement of maps
indexing.py     gather, slice, pad, split
shapes.py       reshape, transpose, expand
"""
