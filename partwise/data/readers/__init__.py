"""A file for every kind of data that can be read, and the catalogue of named data sets."""
