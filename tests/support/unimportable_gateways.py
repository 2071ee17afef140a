"""A module whose import fails with an error that quotes a secret."""

import os

raise RuntimeError(f"cannot log in with {os.environ['PROVIDER_TOKEN']}")
