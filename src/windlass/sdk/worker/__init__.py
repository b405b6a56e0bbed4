"""The worker: claims tasks, runs handlers, reports, sends heartbeats."""
