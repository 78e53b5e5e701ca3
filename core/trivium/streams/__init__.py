"""Streams: partitions of record batches, their layout, and their upkeep (retention, compaction,
joining of small batches).
"""
