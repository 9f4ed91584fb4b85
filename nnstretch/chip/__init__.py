"""Nouns of one accelerator.

accelerator.py  machine of clusters, cores and buffers
instances.py    groups of operators, their instances, residencies, instructions
boxes.py        part of a tensor
"""
