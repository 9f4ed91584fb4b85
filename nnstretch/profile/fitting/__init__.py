"""Measured kernels -> a predictor with intervals.

fit_predictor.py     samples -> Learned, family by family, the best model on held-out samples
training_kernels.py  measured kernels of one family as arrays
rate_model.py        non-negative rates per unit of work
trees.py             boosted trees on what the rates leave
error_quantiles.py   intervals from held-out errors
"""
