"""TraceCaptures: which exist, and the loop that carries them out with the collectors of their jobs."""
