"""What the tests stand on: servers, databases, a pooler. Nothing here is shipped."""

import windlass.serve  # noqa: F401
