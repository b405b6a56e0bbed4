"""The callback routes, and the push of tasks."""
