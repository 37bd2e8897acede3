"""Every kind of data that is read, a file each, and the catalogue of data sets that have a name."""
