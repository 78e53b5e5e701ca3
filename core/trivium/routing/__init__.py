"""From an address to destinations: exchanges, their bindings and routes, and the last message of
each topic, which is retained.
"""
