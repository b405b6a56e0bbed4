"""Certificates of the internal port and of its callers."""
