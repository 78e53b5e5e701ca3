"""AMQP as bytes: frames, methods, tables, properties, errors.

Nothing here acts. A decoder may remember what it decoded last, to save work, and count what AMQP
cannot carry.
"""
