"""The kinds of objects that queue: how each asks for capacity, starts, runs and stops. One file or folder a kind."""
