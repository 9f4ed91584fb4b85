"""Kernels drawn, measured until the budget is spent, and kept.

kernel_spec.py       kernel from operator and shapes
kernel_generator.py  kernels drawn from a prior
perturbation.py      kernels near another one
epilogues.py         what follows a drawn kernel, and its layout
targets.py           kernels of networks that were named
medleys.py           kernels of one size, measured in turns
kernel_sampler.py    measure until the budget is spent
sample.py            one measured kernel
journal.py           resumable measurements
"""
