"""What kernels and branches take on a described accelerator.

kernel_work.py     products, operations and bytes of a kernel, numbers or arrays
kernel_times.py    how long each engine works for them, in closed form
deployed_graph.py  batch norms folded, as an accelerator gets its network
whole_branch.py    the fastest schedule of a branch
"""
