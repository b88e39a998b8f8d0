"""Asking the collectors of jobs how far they are: tokens, Secrets, one sweep over all of them after the other."""
