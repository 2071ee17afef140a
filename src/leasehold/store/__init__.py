"""The database: protocols of what the engine needs, and the databases that provide it."""
