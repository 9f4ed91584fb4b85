"""Rules that translate operators of PyTorch to calls of the C++ runtime.

windows.py      convolutions, pools, resizing
norms.py        batch, layer, group and instance norms
products.py     products with weights and of activations, attention, einsum
elementwise.py  activations, arithmetic, softmax, reductions
composed.py     variances, norms, gates, bounds, resampling: sums and products of others
shapes.py       views, joins, what is filled
shuffles.py     rolls, repetitions, shuffles
lookups.py      rows of a table by their ids, constant masks
borders.py      paddings, windows as columns, parts that are picked or replaced
"""
