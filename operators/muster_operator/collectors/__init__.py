"""Polling of the jobs' collectors: tokens, Secrets, heartbeats."""
