"""Images by class on the device, streamed from a file if they do not fit."""
