"""Finds the checkpoints that programs of any framework write: which folders hold a complete one, and of which step."""
