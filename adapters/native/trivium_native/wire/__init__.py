"""What goes over the wire, for both sides: frames, their fields, messages, error codes.

It knows neither the broker nor a client.
"""
