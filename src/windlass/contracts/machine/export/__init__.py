"""Export formats that ship with Windlass. Each is a program for a machine that lives for one task."""
