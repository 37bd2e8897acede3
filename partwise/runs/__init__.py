"""Everything around a run: its settings, evaluation, records and files."""
