"""The FastAPI routes of the HTTP API."""
