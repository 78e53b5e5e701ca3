"""The journal: batches written one behind the other, and made durable."""
