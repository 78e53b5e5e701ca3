"""What runs a broker: turns, their driver on the event loop, sockets and listeners, what protocol
adapters implement and get, pauses and alarms.
"""
