"""The operator's guarantees as a state machine on events, without clock, network and code of Muster."""
