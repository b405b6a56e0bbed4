"""Payloads and results that are too long for a row, and the port to the blob store."""
