"""What runs a broker: turns, the event loop and its sockets, what protocol adapters implement and
get, pauses and alarms.
"""
