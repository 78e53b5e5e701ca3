"""What a message is: its address, its header in the words of the protocol it came by, its payload,
and how it is to be delivered. Topics and routing keys are translated here.
"""
