"""Command line: parse arguments, call the library, print results."""

from condenset.cli.main import main

__all__ = ["main"]
