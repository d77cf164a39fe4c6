"""Pictures and pages of what was made."""
