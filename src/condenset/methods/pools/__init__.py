"""Pools of trained networks."""
