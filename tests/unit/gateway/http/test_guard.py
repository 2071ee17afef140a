"""No notation of a URL and no answer of a name server leads a call to a forbidden address."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest
from aiohttp.abc import AbstractResolver

from leasehold.domain.address import AddressKind, classify_address
from leasehold.gateway.errors import ForbiddenAddress, GatewayMisconfigured
from leasehold.gateway.http.guard import Guard, GuardedResolver

FORBIDDEN = {
    "0.0.0.0": AddressKind.UNSPECIFIED,
    "0.1.2.3": AddressKind.UNSPECIFIED,
    "10.0.0.1": AddressKind.PRIVATE,
    "100.64.0.1": AddressKind.PRIVATE,
    "100.100.100.200": AddressKind.METADATA,
    "127.0.0.1": AddressKind.LOOPBACK,
    "127.255.255.254": AddressKind.LOOPBACK,
    "168.63.129.16": AddressKind.METADATA,
    "169.254.0.1": AddressKind.LINK_LOCAL,
    "169.254.169.254": AddressKind.METADATA,
    "169.254.170.2": AddressKind.METADATA,
    "172.16.0.1": AddressKind.PRIVATE,
    "172.31.255.255": AddressKind.PRIVATE,
    "192.0.0.1": AddressKind.RESERVED,
    "192.0.0.192": AddressKind.METADATA,
    "192.0.2.1": AddressKind.RESERVED,
    "192.168.1.1": AddressKind.PRIVATE,
    "198.18.0.1": AddressKind.RESERVED,
    "198.51.100.7": AddressKind.RESERVED,
    "203.0.113.7": AddressKind.RESERVED,
    "224.0.0.1": AddressKind.MULTICAST,
    "239.255.255.255": AddressKind.MULTICAST,
    "240.0.0.1": AddressKind.RESERVED,
    "255.255.255.255": AddressKind.RESERVED,
    "::": AddressKind.UNSPECIFIED,
    "::1": AddressKind.LOOPBACK,
    "::7f00:1": AddressKind.RESERVED,
    "::ffff:127.0.0.1": AddressKind.LOOPBACK,
    "::ffff:169.254.169.254": AddressKind.METADATA,
    "::ffff:0:10.0.0.1": AddressKind.PRIVATE,
    "64:ff9b::7f00:1": AddressKind.LOOPBACK,
    "64:ff9b::a9fe:a9fe": AddressKind.METADATA,
    "64:ff9b:1::a00:1": AddressKind.RESERVED,
    "100::1": AddressKind.RESERVED,
    "2001::1": AddressKind.RESERVED,
    "2001:db8::1": AddressKind.RESERVED,
    "2002:7f00:1::": AddressKind.LOOPBACK,
    "2002:c0a8:101::1": AddressKind.PRIVATE,
    "2002:a9fe:a9fe::1": AddressKind.METADATA,
    "3fff::1": AddressKind.RESERVED,
    "5f00::1": AddressKind.RESERVED,
    "fc00::1": AddressKind.PRIVATE,
    "fd00:ec2::254": AddressKind.METADATA,
    "fd12:3456::1": AddressKind.PRIVATE,
    "fe80::1": AddressKind.LINK_LOCAL,
    "fe80::1%eth0": AddressKind.LINK_LOCAL,
    "fec0::1": AddressKind.PRIVATE,
    "ff02::1": AddressKind.MULTICAST,
}
PUBLIC = [
    "1.1.1.1",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700::1111",
    "64:ff9b::101:101",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize(("address", "kind"), FORBIDDEN.items())
def test_address_outside_the_public_internet_is_classified(address, kind):
    assert classify_address(ip_address(address)) is kind


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_allowed_even_inside_an_ipv6_address(address):
    assert classify_address(ip_address(address)) is None


@pytest.mark.parametrize("address", [one for one in FORBIDDEN if "%" not in one])
def test_url_with_a_forbidden_address_is_refused_when_the_gateway_opens(address):
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(ForbiddenAddress):
        Guard().checked_url(f"https://{host}/x")


ODD = [
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7F.1/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.0.0.01/",
    "http://127.0.0.0x1/",
    "http://256.0.0.1/",
    "http://1.2.3.4.5/",
    "http://127.0.0.1./",
    "http://localhost./",
    "http://api.example.com./",
    "http://api.example.com../",
    "http://api..example.com/",
    "http://.example.com/",
    "http://-x.example.com/",
    "http://127%2e0%2e0%2e1/",
    "http://%6cocalhost/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[::1/",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://[v1.x]/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://exämple.com/",
    "http://user@api.example.com/",
    "http://user:password@api.example.com/",
    "http://api.example.com@127.0.0.1/",
    "http://127.0.0.1#@api.example.com/",
    "http://api.example.com\\@127.0.0.1/",
    "http://127.0.0.1\\.example.com/",
    "http://api.example.com:0/",
    "http://api.example.com:65536/",
    "http://api.example.com:80:80/",
    "http://api.example.com:-1/",
    "http://api.example.com:8o/",
    "http:///etc/passwd",
    "http://",
    "http:/api.example.com/",
    "//api.example.com/",
    "api.example.com/x",
    "",
    "file:///etc/passwd",
    "ftp://api.example.com/",
    "gopher://127.0.0.1:6379/_x",
    "unix:///run/x.sock",
    "javascript:alert(1)",
    "http+unix://x/",
    "http://api.example.com/a b",
    "http://api.example.com/\r\nX: y",
    "http://api.example.com/\x00",
    " http://api.example.com/",
    "http://api.example.com\t/",
    f"http://{'a' * 64}.example.com/",
    f"http://{'a.' * 130}com/",
]


@pytest.mark.parametrize("url", ODD)
def test_ambiguous_url_is_refused_even_if_everything_is_allowed(url):
    guard = Guard(allow_private=True, allow_hosts=["localhost", "127.0.0.1", "*.example.com"])
    with pytest.raises(GatewayMisconfigured):
        guard.checked_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1/send?x=1",
        "http://api.example.com:8080/",
        "https://API.Example.COM/",
        "https://xn--exmple-cua.com/",
        "https://my_service.example.com/",
        "https://1.1.1.1/",
        "https://[2606:4700::1111]:8443/x",
        "https://1password.com/",
        "https://3com/",
    ],
)
def test_plain_url_is_called_as_written(url):
    assert str(Guard().checked_url(url)) == str(url).replace("API.Example.COM", "api.example.com")


def test_refusal_never_shows_a_password():
    with pytest.raises(GatewayMisconfigured) as refused:
        Guard().checked_url("https://user:hunter2@api.example.com/")
    assert "hunter2" not in str(refused.value)


def test_allow_private_allows_private_addresses_but_not_metadata():
    guard = Guard(allow_private=True)
    for address in ("10.0.0.1", "127.0.0.1", "[::1]", "[fd12::1]"):
        guard.checked_url(f"http://{address}/")
    for address in ("169.254.169.254", "169.254.1.1", "224.0.0.1", "0.0.0.0", "[fe80::1]"):
        with pytest.raises(ForbiddenAddress):
            guard.checked_url(f"http://{address}/")


def test_literal_address_in_allow_hosts_is_not_checked():
    Guard(allow_hosts=["169.254.7.1"]).checked_url("http://169.254.7.1/")
    with pytest.raises(ForbiddenAddress):
        Guard(allow_hosts=["169.254.7.1"]).checked_url("http://169.254.7.2/")


def test_host_in_allow_hosts_may_be_private_but_never_metadata():
    guard = Guard(allow_hosts=["gateway.internal", "*.svc.internal"])
    guard.check_address("gateway.internal", "10.1.2.3")
    guard.check_address("Gateway.Internal", "10.1.2.3")
    guard.check_address("sms.svc.internal", "10.1.2.3")
    for host in ("other.internal", "svc.internal", "evilsvc.internal", "sms.svc.internal.evil.com"):
        with pytest.raises(ForbiddenAddress):
            guard.check_address(host, "10.1.2.3")
    with pytest.raises(ForbiddenAddress):
        guard.check_address("gateway.internal", "169.254.169.254")


def test_host_that_would_get_secrets_in_clear_text_must_not_be_public():
    hosts = ["gateway.internal", "93.184.215.14"]
    guard = Guard(allow_hosts=hosts, allow_private=True, never_public=["Gateway.Internal", *hosts])
    guard.check_address("gateway.internal", "10.1.2.3")
    guard.check_address("api.example.com", "93.184.215.14")
    for host in hosts:
        with pytest.raises(ForbiddenAddress, match="clear text"):
            guard.check_address(host, "93.184.215.14")


@pytest.mark.parametrize(
    "template",
    [
        "https://api.example.com/x",
        "https://{key}.example.com/x",
        "https://{key}/x",
        "{key}://api.example.com/",
        "https://127.0.0.1/{key}",
        "https://api.example.com/{key}/{other}",
    ],
)
def test_lookup_url_whose_key_could_change_the_host_is_refused(template):
    with pytest.raises(GatewayMisconfigured):
        Guard().checked_template(template)


def test_key_may_be_in_the_path_or_the_query():
    for template in ("https://api.example.com/{key}", "https://api.example.com?key={key}"):
        assert Guard().checked_template(template) == template


class Rebinding(AbstractResolver):
    """A name server that answers differently every time it is asked."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def resolve(self, host, port=0, family=socket.AF_INET):
        return [
            {"hostname": host, "host": one, "port": port, "family": family, "proto": 0, "flags": 0}
            for one in self.answers.pop(0)
        ]

    async def close(self):
        pass


async def test_name_is_resolved_once_and_only_checked_addresses_are_returned():
    resolver = GuardedResolver(Guard(), Rebinding(["1.1.1.1"], ["127.0.0.1"]))
    assert [one["host"] for one in await resolver.resolve("a.example.com", 80)] == ["1.1.1.1"]
    with pytest.raises(ForbiddenAddress) as refused:
        await resolver.resolve("a.example.com", 80)
    assert (refused.value.host, refused.value.address) == ("a.example.com", "127.0.0.1")


async def test_one_forbidden_address_refuses_the_whole_name():
    resolver = GuardedResolver(Guard(), Rebinding(["1.1.1.1", "169.254.169.254"]))
    with pytest.raises(ForbiddenAddress):
        await resolver.resolve("a.example.com", 80)
