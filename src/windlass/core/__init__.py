"""The rules. Pure: no I/O, no clock, no randomness; those are arguments."""
