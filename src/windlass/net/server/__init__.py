"""The HTTP server: limits on what a caller may use, TLS, one port for several applications."""
