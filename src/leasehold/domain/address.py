"""What kind of network an IP address belongs to: the public internet, or which other.

The address tables are ours and not those of `ipaddress`: its definition of "private" changed
between patch releases of Python, and it knows no metadata services. An IPv6 address that carries an
IPv4 address (mapped, translated, NAT64, 6to4) is classified by the latter, because the packets end
there.
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


# Where clouds hand out credentials. Azure's 168.63.129.16 lies in a public range.
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

# IPv6 networks that carry an IPv4 address, and the number of bits to the right of it.
_CARRYING_V4 = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::ffff:0:0/96", 0),
        ("::ffff:0:0:0/96", 0),
        ("64:ff9b::/96", 0),
        ("2002::/16", 80),
    )
)
_BITS_V4 = 0xFFFFFFFF


def classify_address(address: IPv4Address | IPv6Address) -> AddressKind | None:
    """Return why an address is not public; None for the public internet."""
    if isinstance(address, IPv6Address):
        return _classify_v6(address)
    if address in _METADATA:
        return AddressKind.METADATA
    return next((kind for network, kind in _NETWORKS_V4 if address in network), None)


def _classify_v6(address: IPv6Address) -> AddressKind | None:
    # Without its scope (fe80::1%eth0), which would make it unequal to the addresses in the tables.
    bare = IPv6Address(int(address))
    if bare in _METADATA:
        return AddressKind.METADATA
    carried = _carried_v4(bare)
    if carried is not None:
        return classify_address(carried)
    for network, kind in _NETWORKS_V6:
        if bare in network:
            return kind
    return None if bare in _GLOBAL_V6 else AddressKind.RESERVED


def _carried_v4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address at which packets to this address end."""
    for network, shift in _CARRYING_V4:
        if address in network:
            return IPv4Address((int(address) >> shift) & _BITS_V4)
    return None
