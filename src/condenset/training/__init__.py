"""Training and evaluation of networks."""
