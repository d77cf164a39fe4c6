"""Charts of results and grids of images."""
