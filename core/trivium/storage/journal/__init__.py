"""The journal: write batches, written one behind the other, and made durable."""
