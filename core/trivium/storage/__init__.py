"""Storage: write batches, logs and tables, in memory and on disk."""
