"""What stands between a wrapper and the program of somebody else: a process that locks itself in, then becomes it.

Nothing but the standard library, and nothing of the rest of Windlass: it starts anew for every task.
"""
