"""Gradient matching and its variants."""
