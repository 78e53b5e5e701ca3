"""The catalog: what checkpoints have written and where, kept twice."""
