"""The commands of `partwise`: declared in one file, and what they do, which may need torch, in others."""
