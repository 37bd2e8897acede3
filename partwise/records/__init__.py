"""Frozen types, with one codec, for the files of a run and the messages of a federation."""
