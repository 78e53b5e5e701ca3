"""What an operator sees: metrics of the process and of the protocols, and health, over HTTP."""
