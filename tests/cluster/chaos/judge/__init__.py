"""The promises, as a state machine on events: no clock, no network, nothing of Muster. See `judge.py`."""
