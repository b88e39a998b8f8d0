"""Writes to the API server: in which order, what waits after a failure, and writes whose outcome is unknown."""
