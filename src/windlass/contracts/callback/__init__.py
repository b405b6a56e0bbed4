"""The callback contract: the engine pushes a task to an HTTP service, which calls back."""
