"""Collect the contents of the HTML report of a run, and write it."""
