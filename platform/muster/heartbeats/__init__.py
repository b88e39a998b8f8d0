"""Heartbeats of ranks: validation, authenticated transport, progress lines."""
