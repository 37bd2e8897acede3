"""The version of partwise, read by the package, its runs and the build alike."""

__version__ = "0.1.0"
