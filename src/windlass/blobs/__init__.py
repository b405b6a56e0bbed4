"""Drivers of the blob store: a folder, S3, Google, Azure."""
