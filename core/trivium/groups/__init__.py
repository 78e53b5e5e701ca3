"""Consumer groups of streams: committed offsets, members, and which of them has which partition."""
