"""Verification of signatures: pure functions, which return a delivery or raise SignatureError."""

from __future__ import annotations

import base64
import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.webhooks import (
    BearerToken,
    CloudEvents,
    GitHub,
    Scheme,
    Shopify,
    SignatureError,
    Slack,
    StandardWebhooks,
    Stripe,
    sign,
)
from tests.webhooks.signing import NOW, OTHER, PROVIDERS, SECRET, Provider, shopify, slack, standard, stripe

each_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
each_timed = pytest.mark.parametrize("provider", [p for p in PROVIDERS if p.timed], ids=lambda provider: provider.name)
FIVE_MINUTES = 300


def refused(scheme: Scheme, headers: Any, body: bytes, now: float = NOW) -> str:
    with pytest.raises(SignatureError) as caught:
        scheme.verify(headers, body, now=now)
    return str(caught.value)


@each_provider
def test_a_delivery_has_id_topic_source_and_payload(provider: Provider) -> None:
    [delivery] = provider.make(source="mine").verify(provider.sign(provider.body), provider.body, now=NOW)
    assert (delivery.id, delivery.topic, delivery.source) == (provider.id, provider.topic, "mine")
    assert delivery.payload == json.loads(provider.body)
    assert delivery.problem is None


@each_provider
def test_headers_may_be_of_any_case_and_type(provider: Provider) -> None:
    signed = provider.sign(provider.body)
    scheme = provider.make()
    for headers in (
        {name.upper(): value for name, value in signed.items()},
        list(signed.items()),
        [(name.lower().encode(), value.encode()) for name, value in signed.items()],
    ):
        assert scheme.verify(headers, provider.body, now=NOW)


@each_provider
def test_any_of_several_secrets_fits(provider: Provider) -> None:
    signed = provider.sign(provider.body)
    assert provider.make([OTHER, SECRET]).verify(signed, provider.body, now=NOW)
    assert provider.make([SECRET, OTHER]).verify(signed, provider.body, now=NOW)
    refused(provider.make(OTHER), signed, provider.body)


@each_provider
def test_a_changed_body_or_signature_is_refused(provider: Provider) -> None:
    signed, scheme = provider.sign(provider.body), provider.make()
    refused(scheme, signed, provider.body + b" ")
    refused(scheme, signed, b"")
    header = provider.signature
    without = {name: value for name, value in signed.items() if name != header}
    assert header.lower() in refused(scheme, without, provider.body)
    assert header.lower() in refused(scheme, [*signed.items(), (header, signed[header])], provider.body)
    # The case counts: hexadecimal is lower case, and base64 has both. Only one character is changed, or all of them.
    for value in ("", " ", "é", "\ud800", "=", ",", signed[header].swapcase(), signed[header][:-2] + "!="):
        refused(scheme, {**without, header: value}, provider.body)


@pytest.mark.parametrize("distance", [FIVE_MINUTES + 1, 10**9])
@pytest.mark.parametrize("direction", [-1, 1], ids=["old", "future"])
@each_timed
def test_a_time_outside_of_the_tolerance_is_refused(provider: Provider, distance: int, direction: int) -> None:
    signed = provider.sign(provider.body, NOW + direction * distance)
    assert "timestamp" in refused(provider.make(), signed, provider.body)


@pytest.mark.parametrize("direction", [-1, 1], ids=["old", "future"])
@each_timed
def test_a_time_within_the_tolerance_is_accepted(provider: Provider, direction: int) -> None:
    signed = provider.sign(provider.body, NOW + direction * FIVE_MINUTES)
    assert provider.make().verify(signed, provider.body, now=NOW)
    assert refused(provider.make(tolerance=timedelta(seconds=10)), signed, provider.body)


@pytest.mark.parametrize("time", ["", "x", "1.5", "-1", "+1", "1_0", " 1", "١٢", "9" * 13, "1e9", "nan"])
def test_a_time_that_is_no_number_is_refused(time: str) -> None:
    assert "timestamp" in refused(Stripe(SECRET), {"Stripe-Signature": f"t={time},v1=00"}, b"{}")
    assert "timestamp" in refused(Slack(SECRET), {**slack(b"{}"), "X-Slack-Request-Timestamp": time}, b"{}")
    assert "timestamp" in refused(StandardWebhooks(SECRET), {**standard(b"{}"), "webhook-timestamp": time}, b"{}")


def test_stripe_has_one_time_and_several_signatures() -> None:
    body = PROVIDERS[0].body
    good = stripe(body)["Stripe-Signature"].partition(",")[2]
    for header in (f"t={NOW},v1=00,{good}", f"t={NOW}, {good}, v1=00", f"v0=x,{good},t={NOW}"):
        assert Stripe(SECRET).verify({"Stripe-Signature": header}, body, now=NOW)
    for header in (good, f"t={NOW},t={NOW},{good}", f"t={NOW},{good.replace('v1', 'v0')}", f"t={NOW}"):
        refused(Stripe(SECRET), {"Stripe-Signature": header}, body)


def test_the_vector_of_the_standard() -> None:
    """The message of the reference libraries of Standard Webhooks."""
    body = b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    for secret in (SECRET, SECRET.removeprefix("whsec_")):
        assert sign(secret, headers["webhook-id"], 1614265330, body) == headers
        [delivery] = StandardWebhooks(secret, topic="test").verify(headers, body, now=1614265330)
        assert delivery.id == headers["webhook-id"]
    svix = {name.replace("webhook", "svix"): value for name, value in headers.items()}
    assert StandardWebhooks(SECRET, topic="test").verify(svix, body, now=1614265330)
    several = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,x v1 " + headers["webhook-signature"]
    assert StandardWebhooks(SECRET).verify({**headers, "webhook-signature": several}, body, now=1614265330)
    refused(StandardWebhooks(SECRET), {**headers, "webhook-id": "other"}, body, 1614265330)
    for version in ("v2", "v1a", "", "V1"):  # the signature of another version is not read as one of this
        renamed = headers["webhook-signature"].replace("v1", version)
        refused(StandardWebhooks(SECRET), {**headers, "webhook-signature": renamed}, body, 1614265330)


PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC_BYTES = PRIVATE.public_key().public_bytes_raw()
WHSK = "whsk_" + base64.b64encode(bytes(range(32))).decode()
WHSK_LONG = "whsk_" + base64.b64encode(bytes(range(32)) + PUBLIC_BYTES).decode()
WHPK = "whpk_" + base64.b64encode(PUBLIC_BYTES).decode()


@pytest.mark.parametrize("private", [WHSK, WHSK_LONG])
def test_ed25519(private: str) -> None:
    body = PROVIDERS[2].body
    headers = sign(private, "msg_1", NOW, body)
    expected = base64.b64encode(PRIVATE.sign(b"msg_1.%d." % NOW + body)).decode()
    assert headers["webhook-signature"] == f"v1a,{expected}"
    assert StandardWebhooks(WHPK).verify(headers, body, now=NOW)
    assert StandardWebhooks([SECRET, WHPK]).verify(headers, body, now=NOW)
    refused(StandardWebhooks(WHPK), headers, body + b" ")
    for wrong in ("v1a,", "v1a,!", "v1a,é", f"v1,{expected}", "v1a,AAAA"):
        refused(StandardWebhooks([WHPK, SECRET]), {**headers, "webhook-signature": wrong}, body)


def test_an_hmac_under_the_public_key_is_refused() -> None:
    """The public key is no secret: it must not be used as the key of an HMAC."""
    body = PROVIDERS[2].body
    forged = sign(PUBLIC_BYTES, "msg_1", NOW, body)
    refused(StandardWebhooks(WHPK), forged, body)
    refused(
        StandardWebhooks(WHPK),
        {**forged, "webhook-signature": forged["webhook-signature"].replace("v1,", "v1a,")},
        body,
    )


def test_two_secrets_sign_twice() -> None:
    body = PROVIDERS[2].body
    headers = sign([SECRET, OTHER, WHSK], "msg_1", NOW, body)
    assert [item.partition(",")[0] for item in headers["webhook-signature"].split(" ")] == ["v1", "v1", "v1a"]
    for secret in (SECRET, OTHER, WHPK):
        assert StandardWebhooks(secret).verify(headers, body, now=NOW)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!", "whpk_AAAA", "not base64!", "whsk_AAAA"])
def test_a_malformed_secret_is_refused_before_the_first_delivery(secret: str) -> None:
    with pytest.raises(ArgumentValueError):
        StandardWebhooks(secret)


@pytest.mark.parametrize("make", [Stripe, GitHub, StandardWebhooks, Slack, Shopify, BearerToken])
def test_a_missing_secret_is_refused(make: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="environment"):
        make(None)
    for empty in ("", b"", [], ["x", ""]):
        with pytest.raises(ArgumentValueError):
            make(empty)
    with pytest.raises(ArgumentTypeError):
        make([5])


@pytest.mark.parametrize("id_", ["", "a b", "é", "a\nb"])
def test_an_id_that_no_header_can_carry_is_not_signed(id_: str) -> None:
    with pytest.raises(ArgumentValueError):
        sign(SECRET, id_, NOW, b"")


@each_provider
def test_no_secret_is_shown(provider: Provider) -> None:
    assert SECRET not in repr(provider.make())
    assert "Zo" not in repr(provider.make().verify(provider.sign(provider.body), provider.body, now=NOW))


UNREADABLE = [b"", b"{", b"\xff", b"[]", b"5", b"null", b"[" * 100_000, b'{"a": NaN}']


@pytest.mark.parametrize(
    ("provider", "body"),
    [(provider, body) for provider in PROVIDERS for body in UNREADABLE]
    + [(provider, b'{"id": 5}') for provider in PROVIDERS if provider.name not in {"github", "shopify"}],
)
def test_what_is_well_signed_and_cannot_be_read_is_a_delivery_with_a_problem(provider: Provider, body: bytes) -> None:
    [delivery] = provider.make().verify(provider.sign(body), body, now=NOW)
    assert (delivery.id, delivery.payload) == (None, body)
    assert delivery.problem


@pytest.mark.parametrize(("name", "header"), [("github", "X-GitHub-Delivery"), ("shopify", "X-Shopify-Topic")])
def test_without_its_unsigned_headers_a_delivery_has_a_problem(name: str, header: str) -> None:
    [provider] = [provider for provider in PROVIDERS if provider.name == name]
    headers = {key: value for key, value in provider.sign(provider.body).items() if key != header}
    [delivery] = provider.make().verify(headers, provider.body, now=NOW)
    assert delivery.problem


def test_slack_gets_its_challenge_if_it_is_signed() -> None:
    body = b'{"type": "url_verification", "challenge": "3eZbrw1aB"}'
    [delivery] = Slack(SECRET).verify(slack(body), body, now=NOW)
    assert delivery.reply == b"3eZbrw1aB"
    refused(Slack(SECRET), slack(body, secret="other"), body)


def test_shopify_has_two_ids() -> None:
    body = b"{}"
    [delivery] = Shopify(SECRET, id_header="event").verify(shopify(body), body, now=NOW)
    assert delivery.id == "e-1"


def test_github_may_send_a_form() -> None:
    body = b"payload=%7B%22ref%22%3A%22main%22%7D"
    headers = {**PROVIDERS[1].sign(body), "Content-Type": "application/x-www-form-urlencoded"}
    [delivery] = GitHub(SECRET).verify(headers, body, now=NOW)
    assert delivery.payload == {"ref": "main"}
    for other in (b"x=1", b"payload=1&payload=2", b"\xff"):
        [delivery] = GitHub(SECRET).verify({**headers, **PROVIDERS[1].sign(other)}, other, now=NOW)
        assert delivery.problem


def test_a_bearer_token_proves_the_sender_of_cloud_events() -> None:
    body = b'{"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}'
    headers = {"Content-Type": "application/cloudevents+json", "Authorization": "Bearer good"}
    scheme = CloudEvents(signed_by=BearerToken(["other", "good"]))
    [delivery] = scheme.verify(headers, body, now=NOW)
    assert (delivery.source, delivery.id, delivery.topic) == ("/s", "1", "t")
    for wrong in ("Bearer", "Bearer bad", "Basic good", "good", ""):
        refused(scheme, {**headers, "Authorization": wrong}, body)
    unsigned: Any = "none"
    with pytest.raises(ArgumentTypeError):
        CloudEvents(signed_by=unsigned)


SCHEMES = [
    *(provider.make() for provider in PROVIDERS),
    StandardWebhooks([SECRET, WHPK]),
    CloudEvents(signed_by=None),
    CloudEvents(signed_by=BearerToken("x")),
]
NAMES = sorted(
    {name for provider in PROVIDERS for name in provider.sign(b"")} | {"authorization", "ce-id", "content-type"}
)
PIECES = st.sampled_from([f"t={NOW}", "v1=", "v1,", "v1a,", "sha256=", "v0=", ",", "=", " ", str(NOW), "AAAA", "1.0"])
VALUES = st.text() | st.binary() | st.lists(PIECES | st.text(max_size=3)).map("".join)


@given(st.sampled_from(SCHEMES), st.lists(st.tuples(st.sampled_from(NAMES), VALUES)), st.binary())
def test_any_headers_give_a_delivery_or_a_signature_error(
    scheme: Scheme, headers: list[tuple[str, Any]], body: bytes
) -> None:
    with contextlib.suppress(SignatureError):
        scheme.verify(headers, body, now=NOW)


@given(
    st.sampled_from(PROVIDERS),
    st.binary()
    | st.recursive(st.none() | st.booleans() | st.text(), st.lists).map(lambda value: json.dumps(value).encode()),
)
def test_any_body_that_is_well_signed_is_a_delivery(provider: Provider, body: bytes) -> None:
    assert provider.make().verify(provider.sign(body), body, now=NOW)
