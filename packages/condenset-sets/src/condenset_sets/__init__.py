"""Finished condensed sets. `condenset.load_condensed` reads them from the directory `sets` of this package."""
