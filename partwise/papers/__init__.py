"""The five papers' tables and figures: what they print, and how it is run again."""
