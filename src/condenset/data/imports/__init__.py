"""Imported datasets: memory-mapped files that open at once."""
