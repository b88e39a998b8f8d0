"""Predicts memory and step time of a training run without running it, and chooses how the ranks divide the work."""
