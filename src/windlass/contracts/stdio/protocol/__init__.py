"""The protocol, worker and client, with the standard library alone. Programs import it as `windlass.stdio`."""
