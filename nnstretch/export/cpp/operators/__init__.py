"""Rules that translate operators of PyTorch to calls of the C++ runtime.

layers.py       convolutions, products with weights, pools, norms, resizing
elementwise.py  activations, arithmetic, softmax, reductions
shapes.py       views, joins, paddings, shuffles
attention.py    products of activations, attention, einsum
"""
