"""The commands of `partwise`: declared without torch, carried out in modules that may need it."""
