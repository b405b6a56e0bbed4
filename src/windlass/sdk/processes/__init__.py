"""A pool of processes for CPU-bound handlers."""
