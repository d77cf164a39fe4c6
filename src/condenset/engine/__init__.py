"""Where work runs: this process's CPU, this machine's GPU."""

from condenset.engine.place import Place

__all__ = ["Place"]
