"""Samples to train on, and their order."""
