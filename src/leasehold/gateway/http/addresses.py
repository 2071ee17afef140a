"""Which addresses are the public internet, and what the others are.

The tables are ours and not those of `ipaddress`: its idea of "private" changed between patch
releases of one Python, and it knows no metadata services. An IPv6 address that carries an IPv4
address (mapped, translated, NAT64, 6to4) is judged by the one that it carries, since that is where
the packets end.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network


class AddressKind(StrEnum):
    """Why an address is not the public internet."""

    METADATA = "a metadata service"
    UNSPECIFIED = "unspecified"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    MULTICAST = "multicast"
    RESERVED = "reserved"


# What clouds answer credentials on; one of them (Azure's) is a public address by its number.
_METADATA = frozenset(
    {
        IPv4Address("169.254.169.254"),
        IPv4Address("169.254.170.2"),
        IPv4Address("169.254.170.23"),
        IPv4Address("168.63.129.16"),
        IPv4Address("100.100.100.200"),
        IPv4Address("192.0.0.192"),
        IPv6Address("fd00:ec2::254"),
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),
    }
)

_NETWORKS_V4 = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", AddressKind.UNSPECIFIED),
        ("10.0.0.0/8", AddressKind.PRIVATE),
        ("100.64.0.0/10", AddressKind.PRIVATE),
        ("127.0.0.0/8", AddressKind.LOOPBACK),
        ("169.254.0.0/16", AddressKind.LINK_LOCAL),
        ("172.16.0.0/12", AddressKind.PRIVATE),
        ("192.0.0.0/24", AddressKind.RESERVED),
        ("192.0.2.0/24", AddressKind.RESERVED),
        ("192.88.99.0/24", AddressKind.RESERVED),
        ("192.168.0.0/16", AddressKind.PRIVATE),
        ("198.18.0.0/15", AddressKind.RESERVED),
        ("198.51.100.0/24", AddressKind.RESERVED),
        ("203.0.113.0/24", AddressKind.RESERVED),
        ("224.0.0.0/4", AddressKind.MULTICAST),
        ("240.0.0.0/4", AddressKind.RESERVED),
    )
)

_NETWORKS_V6 = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", AddressKind.UNSPECIFIED),
        ("::1/128", AddressKind.LOOPBACK),
        ("2001::/23", AddressKind.RESERVED),
        ("2001:db8::/32", AddressKind.RESERVED),
        ("3fff::/20", AddressKind.RESERVED),
        ("fc00::/7", AddressKind.PRIVATE),
        ("fe80::/10", AddressKind.LINK_LOCAL),
        ("fec0::/10", AddressKind.PRIVATE),
        ("ff00::/8", AddressKind.MULTICAST),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")

# Network, and how many bits stand to the right of the IPv4 address inside.
_EMBEDDING = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::ffff:0:0/96", 0),
        ("::ffff:0:0:0/96", 0),
        ("64:ff9b::/96", 0),
        ("2002::/16", 80),
    )
)
_BITS_V4 = 0xFFFFFFFF


def judge(address: IPv4Address | IPv6Address) -> AddressKind | None:
    """Say what kind of address this is; None for the public internet."""
    if isinstance(address, IPv6Address):
        return _judge_v6(address)
    if address in _METADATA:
        return AddressKind.METADATA
    return next((kind for network, kind in _NETWORKS_V4 if address in network), None)


def _judge_v6(address: IPv6Address) -> AddressKind | None:
    # A scope (fe80::1%eth0) makes an address unequal to its own number.
    bare = IPv6Address(int(address))
    if bare in _METADATA:
        return AddressKind.METADATA
    carried = embedded(bare)
    if carried is not None:
        return judge(carried)
    for network, kind in _NETWORKS_V6:
        if bare in network:
            return kind
    return None if bare in _GLOBAL_V6 else AddressKind.RESERVED


def embedded(address: IPv6Address) -> IPv4Address | None:
    """Find the IPv4 address that the packets to this one end up at."""
    for network, shift in _EMBEDDING:
        if address in network:
            return IPv4Address((int(address) >> shift) & _BITS_V4)
    return None
