"""The session contract, our own: remote workers and clients over gRPC."""
