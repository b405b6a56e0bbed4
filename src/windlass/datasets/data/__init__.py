"""The data database: the tables of PostgreSQL datasets."""
