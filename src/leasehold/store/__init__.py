"""The database side: what the engine needs of it, and the databases that give it."""
