"""The registry contract: long-lived workers that register and poll over gRPC."""
