"""An embedded PostgreSQL: a private server in a data folder, for a laptop and for the demo."""
