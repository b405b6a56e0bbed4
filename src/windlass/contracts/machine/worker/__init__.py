"""The framework for programs that run on a machine. They import it as `windlass.sdk.machine`."""
