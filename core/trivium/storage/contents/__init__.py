"""What is stored, as memory has it: logs and tables, their changes, and how they come back."""
