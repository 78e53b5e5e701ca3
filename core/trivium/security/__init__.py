"""Who may connect: users, how their passwords are hashed and checked, and who needs none."""
