"""The PostgreSQL that Windlass brings and starts for development and tests."""
