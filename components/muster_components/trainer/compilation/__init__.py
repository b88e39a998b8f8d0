"""torch.compile: backends by name, records of what it did, and a cache of compiled code."""
