"""Generative models: train a generator on all images of a dataset, and draw the set from it."""
