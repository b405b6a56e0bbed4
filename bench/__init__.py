"""Benchmarks: ours beside the peers and beside the raw limit of PostgreSQL, in one run, as ratios."""
