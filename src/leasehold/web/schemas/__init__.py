"""What the HTTP API takes and answers, and its OpenAPI document."""
