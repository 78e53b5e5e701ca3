"""A virtual host: the topology of its exchanges, queues and streams, how it is declared and
restored, its policies, and its delayed messages.
"""
