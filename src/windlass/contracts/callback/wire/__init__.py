"""The messages and tokens of the callback contract."""
