"""A private PostgreSQL for a laptop, supervised by us."""
