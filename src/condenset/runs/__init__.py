"""Runs: context, checkpoints, events and the run directory."""
