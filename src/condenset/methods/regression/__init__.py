"""Methods with a ridge regression in closed form: label distillation and kernel inducing points."""
