"""How each operator passes channel slices on, and what it ties or pins.

table.py     the rule of each operator; pointwise, binary, pooling, reductions
layers.py    layers with weights, norms, matrix products
moves.py     operators that move, cut or join dimensions
reshapes.py  reshapes and broadcasts
channel_axes.py  which dimension holds channels where no group says so
"""
