"""The client side of sessions: remote apps and workers."""
