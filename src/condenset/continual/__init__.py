"""Continual learning: a replay memory of condensed images."""

from condenset.continual.memory import Memory

__all__ = ["Memory"]
