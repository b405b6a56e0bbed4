"""HTTP and gRPC for every room: servers, clients, limits, signatures, ids."""
