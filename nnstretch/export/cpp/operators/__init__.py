"""Rules that translate operators of PyTorch to calls of the C++ runtime.

windows.py      convolutions, pools, resizing
norms.py        batch, layer, group and instance norms
products.py     products with weights and of activations, attention, einsum
elementwise.py  activations, arithmetic, softmax, reductions
composed.py     variances, gates, masks, resampling: sums and products of others
shapes.py       views, joins, shuffles
lookups.py      rows of a table by their ids
borders.py      paddings, windows as columns, parts that are picked or replaced
"""
