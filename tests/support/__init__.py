"""What the tests stand on: servers, databases, a pooler. Nothing here is shipped."""
