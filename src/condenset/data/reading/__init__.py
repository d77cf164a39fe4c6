"""Read datasets from names, paths, arrays and objects of other libraries."""
