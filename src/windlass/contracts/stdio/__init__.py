"""The stdio contract: child processes that speak JSON lines on stdin and stdout."""
