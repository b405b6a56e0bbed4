"""Reads for people: tasks, runs, the change feed, metrics, the doctor."""
