"""The names of headers and fields whose values are secret."""

from __future__ import annotations

# In lower case, with "-" for "_". A lease token is a secret too: whoever knows it could complete
# another worker's item.
SECRET_NAMES = frozenset(
    {
        "access-key",
        "api-key",
        "apikey",
        "auth-key",
        "authorization",
        "cookie",
        "credentials",
        "passwd",
        "password",
        "private-key",
        "secret",
        "secret-key",
        "set-cookie",
        "signing-key",
        "subscription-key",
        "token",
    }
)
_ENDINGS = tuple(f"-{name}" for name in SECRET_NAMES)


def is_secret_name(name: str) -> bool:
    """Return whether a name is one of these or ends in one: X-Auth-Token, client_secret."""
    spelled = name.lower().replace("_", "-")
    return spelled in SECRET_NAMES or spelled.endswith(_ENDINGS)
