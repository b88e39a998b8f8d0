"""One trace of all ranks, for trace viewers."""
