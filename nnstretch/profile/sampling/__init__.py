"""Kernels drawn, measured until the budget is spent, and kept.

kernel_spec.py       kernel from operator and shapes
kernel_generator.py  kernels drawn from a prior
kernel_sampler.py    measure until the budget is spent
sample.py            one measured kernel
journal.py           resumable measurements
"""
