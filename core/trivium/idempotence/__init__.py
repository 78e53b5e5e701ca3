"""What keeps a repetition from counting twice: windows of known message ids, and producers that
number what they publish.
"""
