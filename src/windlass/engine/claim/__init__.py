"""Claims: a worker takes tasks, and waits if there are none."""
