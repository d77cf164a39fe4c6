"""Files, directories, locks, byte sizes and progress display."""
