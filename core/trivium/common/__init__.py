"""What every folder may use and what knows of none: timers, values and their encoding, patterns,
pieces of input, collections.
"""
