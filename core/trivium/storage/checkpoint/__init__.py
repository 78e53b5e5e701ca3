"""Checkpoints: what the journal holds moves to segments and catalog, and the journal is dropped."""
