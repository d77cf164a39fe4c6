"""Coresets: real images, selected."""
