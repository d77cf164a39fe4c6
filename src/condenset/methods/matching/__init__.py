"""The distribution-matching family."""
