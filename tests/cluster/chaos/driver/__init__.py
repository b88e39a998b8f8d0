"""What submits, breaks and mends, by a seed. `story.py` tells it in order."""
