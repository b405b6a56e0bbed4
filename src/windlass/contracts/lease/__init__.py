"""The lease contract: a wake-up message with an id, a claim over mTLS, operators behind a wrapper."""
