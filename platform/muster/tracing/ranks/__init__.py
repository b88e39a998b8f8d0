"""What ranks are to each other: who waits for whom, at which collective, and for what reason."""
