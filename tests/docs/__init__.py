"""Tests of the README and the site."""
