"""Events and batches of data that tasks produce."""
