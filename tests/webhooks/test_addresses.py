"""Which addresses a sender connects to: public ones, and the one that was checked."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroom import Outcome
from postroom.webhooks import Endpoint, MemoryEndpoints, Sender
from postroom.webhooks.addresses import is_allowed
from tests.webhooks.endpoint_server import endpoint_server
from tests.webhooks.signing import SECRET
from tests.webhooks.test_sender import a_message


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
        "2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::", "not an address", "",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(address: str) -> None:
    assert not is_allowed(address)


def test_a_network_can_be_allowed() -> None:
    allowed = [ip_network("10.1.0.0/16"), ip_network("::1/128")]
    assert is_allowed("10.1.2.3", allowed)
    assert is_allowed("::ffff:10.1.2.3", allowed)
    assert is_allowed("::1", allowed)
    assert not is_allowed("10.2.0.1", allowed)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"]
)
async def test_the_sender_does_not_connect_to_this_machine(host: str) -> None:
    async with endpoint_server() as server:
        sender = Sender(MemoryEndpoints({"acme": Endpoint(f"http://{host}:{server.port}/", SECRET)}))
        outcome = await sender.handle(a_message())
        await sender.close()
    assert (outcome.result, outcome.reason) == ("failed", "the host has no public address")
    assert server.requests == []


async def test_a_name_is_resolved_once_and_the_checked_address_is_used() -> None:
    """Rebinding: the second answer for the same name would be another address."""
    async with endpoint_server() as server:
        url = f"http://rebind.test:{server.port}/"
        sender = Sender(MemoryEndpoints({"acme": Endpoint(url, SECRET)}), allow=["127.0.0.1/32"])
        asked: list[str] = []

        async def resolve(host: str, _port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

        sender._resolve = resolve
        assert await sender.handle(a_message()) is Outcome.SUCCESS
        await sender.close()
    assert asked == ["rebind.test"]
    assert server.requests[0].headers["host"] == f"rebind.test:{server.port}"


async def test_of_several_addresses_only_the_allowed_ones_are_used() -> None:
    async with endpoint_server() as server:
        url = f"http://mixed.test:{server.port}/"
        sender = Sender(MemoryEndpoints({"acme": Endpoint(url, SECRET)}), allow=["127.0.0.1/32"])

        async def resolve(_host: str, _port: int) -> list[str]:
            return ["10.0.0.1", "127.0.0.2", "127.0.0.1"]

        sender._resolve = resolve
        assert await sender.handle(a_message()) is Outcome.SUCCESS
        await sender.close()


async def test_a_name_that_does_not_exist_is_a_failure() -> None:
    sender = Sender(MemoryEndpoints({"acme": Endpoint("https://hooks.test/", SECRET)}))

    async def resolve(_host: str, _port: int) -> list[str]:
        raise OSError

    sender._resolve = resolve
    assert (await sender.handle(a_message())).reason == "the request failed: ConnectError"
    await sender.close()


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS settings of a server for this host, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())


@pytest.mark.parametrize(("host", "result"), [("hooks.test", "success"), ("other.test", "failed")])
async def test_tls_checks_the_certificate_of_the_host_and_not_of_the_address(
    tmp_path: Path, host: str, result: str
) -> None:
    tls, trusting = certificate(tmp_path, "hooks.test")
    async with endpoint_server(tls=tls) as server:
        endpoints = MemoryEndpoints({"acme": Endpoint(f"https://{host}:{server.port}/", SECRET)})
        sender = Sender(endpoints, allow=["127.0.0.0/8"], ssl_context=trusting)

        async def resolve(_host: str, _port: int) -> list[str]:
            return ["127.0.0.1"]

        sender._resolve = resolve
        assert (await sender.handle(a_message())).result == result
        await sender.close()
    assert len(server.requests) == (result == "success")
