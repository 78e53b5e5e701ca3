"""What is damaged in a data directory, and what can be saved of it."""
