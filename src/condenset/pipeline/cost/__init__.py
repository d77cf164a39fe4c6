"""Estimate time, memory and disk of a run before it starts."""
