"""What each moment of one trace is: its step, its kind of work, its operator, its transfer."""
