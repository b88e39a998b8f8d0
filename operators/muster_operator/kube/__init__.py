"""Access to the API server: client, list-and-watch, Lease."""
