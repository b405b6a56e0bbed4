"""Handlers and their schemas, handles, groups and chains."""
