"""Queues: entries in sub-queues, their delivery and settlement, what becomes of what a queue gives
up, and the arguments that say so.
"""
