"""Tests of the README and the site."""

LATER = ("docs/federation.md", "docs/privacy.md", "docs/security.md")  # exempt until they are rewritten: then empty
