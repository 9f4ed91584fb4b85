"""Measure kernels on the machine at hand, and fit a predictor to them."""
