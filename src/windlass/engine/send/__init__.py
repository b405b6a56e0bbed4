"""Attempts that the engine delivers: the dispatcher, the outbox, silence."""
