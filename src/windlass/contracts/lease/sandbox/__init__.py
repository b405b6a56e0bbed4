"""The process between a wrapper and an untrusted program: it restricts itself, then becomes the program.

It uses only the standard library and nothing else of Windlass, because it starts anew for every task.
"""
