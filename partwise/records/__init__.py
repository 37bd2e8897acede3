"""What a run leaves and what travels, as frozen types with one codec."""
