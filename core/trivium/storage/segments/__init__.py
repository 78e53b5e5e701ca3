"""Chunks of records, and the segment files in which checkpoints put them."""
