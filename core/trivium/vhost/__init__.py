"""A virtual host: its exchanges, queues and streams, how they are declared, bound and restored, the
routes through them, policies, and delayed messages.
"""
