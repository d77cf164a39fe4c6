"""Score sets on networks: plan, start and resume an evaluation."""
