"""Plan a run, execute it, collect its results."""
