"""PostgreSQL: its schema, its migrations, and thin typed calls of its functions."""
