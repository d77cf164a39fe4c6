"""Methods that differentiate through the training of a network."""
