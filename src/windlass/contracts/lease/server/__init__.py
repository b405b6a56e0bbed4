"""The routes of `/internal/*`, and calls of functions."""
