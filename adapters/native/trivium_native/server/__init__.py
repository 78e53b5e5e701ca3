"""The broker's side: a connection, what clients ask of it, and what it sends them."""
