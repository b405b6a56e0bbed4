"""Leases, heartbeats and the registry of workers."""
