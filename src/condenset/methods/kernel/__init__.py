"""Kernel ridge regression on kernels of infinitely wide networks."""
