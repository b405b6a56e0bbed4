"""Group commit: commands wait in line, share a transaction, and are decided by their rules."""
