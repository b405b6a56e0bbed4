"""The messages of the lease contract."""
