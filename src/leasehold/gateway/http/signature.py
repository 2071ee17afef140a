"""Standard Webhooks signatures: receivers know how to verify them, in any language."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from leasehold.gateway.errors import GatewayMisconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

_PREFIX = "whsec_"
_SECRET_BYTES_MIN = 16


class Signer:
    """Signs under one secret, or under several parted by spaces while they are being rotated."""

    def __init__(self, secrets: str, *, name: str) -> None:
        """`name` says in errors where the secret came from; the secret itself is never said."""
        try:
            parts = secrets.split()
            self._keys = [base64.b64decode(_padded(part), validate=True) for part in parts]
            self._webhooks = [Webhook(key) for key in self._keys]
        except (ValueError, EmptyWebhookSecretError):
            raise GatewayMisconfigured(
                f"{name} holds no signing secret: expected whsec_ and base64"
            ) from None
        if not self._keys or min(map(len, self._keys)) < _SECRET_BYTES_MIN:
            raise GatewayMisconfigured(
                f"{name} holds a signing secret of less than {_SECRET_BYTES_MIN} bytes"
            )

    def headers(self, message_id: UUID, body: bytes, now: datetime) -> Mapping[str, str]:
        """Sign one body. The id is the same on every try, the time is that of the try."""
        seconds = int(now.timestamp())
        return {
            "webhook-id": str(message_id),
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(self._signatures(str(message_id), seconds, body)),
        }

    def _signatures(self, message_id: str, seconds: int, body: bytes) -> list[str]:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            # The library signs text only; the standard signs bytes, and ours may be any.
            signed = f"{message_id}.{seconds}.".encode() + body
            digests = (hmac.new(key, signed, hashlib.sha256).digest() for key in self._keys)
            return [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
        timestamp = datetime.fromtimestamp(seconds, UTC)
        return [webhook.sign(message_id, timestamp, text) for webhook in self._webhooks]


def _padded(secret: str) -> str:
    bare = secret.removeprefix(_PREFIX)
    return bare + "=" * (-len(bare) % 4)
