"""The messages of the registry contract."""
