"""Launchers: local processes, Docker, Kubernetes, Fly.io."""
