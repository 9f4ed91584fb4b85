"""Tensors that share memory, and what a write into one of them changes.

views.py         exported nodes that show the memory of another one
inverse_views.py how a view is written back into the tensor behind it
graph_values.py  the value that each exported node's readers read now
"""
