"""A worker and a client of the registry contract. Programs import them as `windlass.registry`."""
