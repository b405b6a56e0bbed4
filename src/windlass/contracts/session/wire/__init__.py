"""The messages of sessions."""
