"""PostgreSQL for the kernel. Nothing else knows the database."""
