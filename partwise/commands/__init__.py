"""The commands of `partwise`, one file for those that run and one for those that show."""
