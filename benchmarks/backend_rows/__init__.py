"""Rows and cells of the table that `backends.py` prints."""
