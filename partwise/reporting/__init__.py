"""What people read after a run."""
