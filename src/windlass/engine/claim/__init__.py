"""Claims: a worker asks for tasks and waits if there are none."""
