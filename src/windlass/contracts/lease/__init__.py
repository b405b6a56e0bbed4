"""The lease contract: a worker that is woken claims one task by its id, and says what becomes of it, over mTLS."""
