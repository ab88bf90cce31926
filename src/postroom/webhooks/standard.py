"""Standard Webhooks: signing and verification, with HMAC (v1) and ed25519 (v1a)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import ModuleType

from postroom._boxes import check
from postroom.errors import ArgumentValueError, ExtraMissing
from postroom.webhooks.scheme import (
    TOLERANCE,
    Delivery,
    Headers,
    Scheme,
    Secrets,
    SignatureError,
    check_timestamp,
    has_match,
    hmac_sha256,
    json_object,
    secret_list,
)

SECRET, PRIVATE_KEY, PUBLIC_KEY = "whsec_", "whsk_", "whpk_"
Sign = Callable[[bytes], str]
"""Returns the signature of a content, with its version."""
IsSigned = Callable[[bytes, list[tuple[str, str]]], bool]
"""Returns True if one of the signatures, with their versions, is valid for a content."""


class StandardWebhooks(Scheme):
    """Standard Webhooks, and Svix: `webhook-id`, `webhook-timestamp`, `webhook-signature`, or `svix-…`.

    The topic is the `type` in the body.

    Args:
        secrets: a secret (`whsec_…`) or a public key (`whpk_…`, ed25519), or several of both.
        source: the source of the messages. Give each sender its own.
        topic: the topic of all messages. None: the `type` in the body.
        tolerance: how far the time of the signature may be from now, in both directions.
    """

    def __init__(
        self,
        secrets: Secrets,
        *,
        source: str = "webhook",
        topic: str | None = None,
        tolerance: timedelta = TOLERANCE,
    ) -> None:
        super().__init__(source=source)
        self._checks = [_verifier(secret) for secret in secret_list(secrets)]
        self._topic = check.optional_text("topic", topic)
        self._tolerance = check.duration("tolerance", tolerance)

    def check(self, headers: Headers, body: bytes, now: float) -> None:
        """Raises SignatureError unless the signature is valid, at the Unix time `now`."""
        prefix = _prefix(headers)
        id_ = headers.required(f"{prefix}-id")
        if not id_.isascii():  # bytes that could be read in two ways
            raise SignatureError("the id is not ASCII")
        time = check_timestamp(headers.required(f"{prefix}-timestamp"), now, self._tolerance)
        signatures = [item.partition(",") for item in headers.required(f"{prefix}-signature").split(" ")]
        given = [(version, value) for version, comma, value in signatures if comma]
        content = _content(id_, time, body)
        matches = [is_signed(content, given) for is_signed in self._checks]
        if True not in matches:
            raise SignatureError("no signature matches: check the secret, and pass the raw body")

    def read(self, headers: Headers, body: bytes) -> list[Delivery]:
        """Returns what a delivery with a valid signature contains."""
        event = json_object(body)
        if event is None:
            return [self.broken(body, "the body is not a JSON object")]
        id_ = headers.get(f"{_prefix(headers)}-id")
        topic = self._topic or event.get("type")
        return [self.json_delivery(headers, body, id=id_, topic=topic, payload=event)]


def sign(secrets: Secrets, id: str, timestamp: int, body: bytes) -> dict[str, str]:  # noqa: A002
    """Returns the headers of a request that is signed with each of the secrets.

    Args:
        secrets: a secret (`whsec_…`) or a private key (`whsk_…`, ed25519), or several while they are being changed.
        id: the id of the message: the same for each attempt.
        timestamp: the Unix time of this attempt.
        body: the body, exactly as it is sent.

    Raises:
        ArgumentValueError: a secret is malformed, or the id cannot be sent in a header.
        ExtraMissing: a private key needs `postroom[webhooks]`.
    """
    if not is_sendable_id(id):
        raise ArgumentValueError("the id of a webhook must be visible ASCII characters, since it is sent in a header")
    content = _content(id, str(timestamp), body)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signer(secret)(content) for secret in secret_list(secrets)),
    }


def is_sendable_id(id_: str) -> bool:
    """Returns True if a header can carry the id: visible ASCII."""
    return bool(id_) and id_.isascii() and id_.isprintable() and " " not in id_


def _prefix(headers: Headers) -> str:
    return "svix" if headers.get("webhook-id") is None and headers.get("svix-id") is not None else "webhook"


def _content(id_: str, timestamp: str, body: bytes) -> bytes:
    return b"%s.%s.%s" % (id_.encode("ascii"), timestamp.encode(), body)


def signer(secret: str | bytes) -> Sign:
    """Returns the function that signs with a secret or a private key. Raises ArgumentValueError for a bad one."""
    if isinstance(secret, str) and secret.startswith(PRIVATE_KEY):
        key = _key_of(secret, PRIVATE_KEY, (32, 64))
        private = _ed25519().Ed25519PrivateKey.from_private_bytes(key[:32])  # 64 bytes: followed by the public key
        return lambda content: f"v1a,{base64.b64encode(private.sign(content)).decode()}"
    hmac_key = _hmac_key(secret)
    return lambda content: f"v1,{base64.b64encode(hmac_sha256(hmac_key, content).digest()).decode()}"


def _verifier(secret: str | bytes) -> IsSigned:
    """Returns the check for a secret or a public key. Each reads signatures of its own version only."""
    if isinstance(secret, str) and secret.startswith(PUBLIC_KEY):
        return _public_key_verifier(secret)
    hmac_key = _hmac_key(secret)

    def is_signed(content: bytes, given: list[tuple[str, str]]) -> bool:
        expected = base64.b64encode(hmac_sha256(hmac_key, content).digest())
        return has_match([expected], _of_version(given, "v1"))

    return is_signed


def _public_key_verifier(secret: str) -> IsSigned:
    module = _ed25519()
    try:
        public = module.Ed25519PublicKey.from_public_bytes(_key_of(secret, PUBLIC_KEY, (32,)))
    except ValueError as error:
        raise ArgumentValueError(f"a key {PUBLIC_KEY}… is not a public key of ed25519") from error

    def is_valid(signature: str, content: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            public.verify(base64.b64decode(signature, validate=True), content)
        except (InvalidSignature, ValueError, binascii.Error):
            return False
        return True

    return lambda content, given: any(is_valid(value, content) for value in _of_version(given, "v1a"))


def _of_version(given: Iterable[tuple[str, str]], wanted: str) -> list[str]:
    return [value for version, value in given if version == wanted]


def _hmac_key(secret: str | bytes) -> bytes:
    if isinstance(secret, bytes):
        return secret
    for prefix in (PRIVATE_KEY, PUBLIC_KEY):
        if secret.startswith(prefix):
            raise ArgumentValueError(
                f"{prefix}… does not fit: sign with {PRIVATE_KEY}…, verify with {PUBLIC_KEY}…, {SECRET}… does both"
            )
    return _key_of(secret, SECRET, None)


def _key_of(secret: str, prefix: str, sizes: tuple[int, ...] | None) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(prefix), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not key or (sizes is not None and len(key) not in sizes):
        raise ArgumentValueError(f"a secret must be {prefix} and base64 of its key; bytes are used as they are")
    return key


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ExtraMissing("ed25519 needs cryptography: pip install 'postroom[webhooks]'") from error
    return ed25519
