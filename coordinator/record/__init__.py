"""What a run leaves behind: the store, its records, metrics and tables."""
