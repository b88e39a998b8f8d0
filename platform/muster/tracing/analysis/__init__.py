"""The analysis of a run: summaries of its traces, what is known of all ranks together, and its findings."""
