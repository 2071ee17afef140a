"""PostgreSQL: the schema, its migrations, and typed calls of its functions."""
