"""Files that other programs wrote, read within bounds of time and memory: traces, pickles, flight recorders' dumps."""
