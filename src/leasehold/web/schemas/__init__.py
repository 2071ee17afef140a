"""The requests and responses of the HTTP API, and its OpenAPI document."""
