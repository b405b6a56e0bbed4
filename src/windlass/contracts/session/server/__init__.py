"""The server side of sessions: streams, calls, heartbeats."""
