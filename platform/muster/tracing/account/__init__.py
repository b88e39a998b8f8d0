"""The account of a step: every nanosecond of a rank's step has one kind, and lost time has one owner."""
