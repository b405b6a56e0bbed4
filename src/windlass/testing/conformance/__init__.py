"""What the conformance kits of all contracts share."""
