"""The use cases of the kernel: load, decide, apply. I/O and no decisions."""
