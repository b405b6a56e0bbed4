"""The worker of the lease contract: a wrapper around operators, some of them untrusted.

It alone has the client certificate. It takes wake-ups from a carrier, claims, runs an operator, and reports. Installed
with nothing of the server.
"""
