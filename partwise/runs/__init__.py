"""What surrounds a run: its settings, what it keeps, what it counts and what it shows."""
