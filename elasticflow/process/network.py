"""The address at which other machines reach this one."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket as sockets
import struct

from elasticflow.errors import ConfigError

LOOPBACK = "127.0.0.1"
HERE_ALONE = ("127.", "169.254.")
"""How addresses begin that others do not reach: of the loopback, and of a link to one neighbour alone."""
_SIOCGIFADDR = 0x8915


def own_address(wanted: str = "", towards: str = "") -> str:
    """An IPv4 address of this machine: in ``wanted``, a network (10.1.0.0/16), an interface (ib0), a name or
    an address; "": the one that the machine's name stands for, else the one from which it reaches the machine
    ``towards``, else any that others may reach.

    Raises ConfigError if this machine has none that is wanted.
    """
    addresses = _addresses()
    if not wanted:
        others = [address for address in addresses.values() if not address.startswith(HERE_ALONE)]
        likely = (_resolved(sockets.gethostname()), _source(towards), *others)
        return next((address for address in likely if address in others), LOOPBACK)
    if wanted in addresses:
        return addresses[wanted]
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(wanted, strict=False)
        for address in addresses.values():
            if ipaddress.ip_address(address) in network:
                return address
    named = _resolved(wanted)
    if named in addresses.values():
        return named
    found = ", ".join(f"{name} {address}" for name, address in addresses.items())
    raise ConfigError(
        f"host: {wanted!r} is no network, interface or address of {sockets.gethostname()}, which has {found}."
    )


def is_here(address: str) -> bool:
    """Whether this machine, or container, has this IPv4 address."""
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as socket:
        try:
            socket.bind((address, 0))
        except OSError:
            return False
    return True


def _resolved(name: str) -> str:
    with contextlib.suppress(OSError, ValueError, TypeError):  # some texts cannot even be asked for
        return sockets.gethostbyname(name)
    return ""


def _source(towards: str) -> str:
    """From where this machine would speak to another, which is not asked; "" if it knows no way."""
    address = _resolved(towards) if towards else ""
    with contextlib.suppress(OSError), sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as socket:
        if address:
            # Of datagrams this sends nothing: it only chooses the way. Any port would do.
            socket.connect((address, 9))
            return str(socket.getsockname()[0])
    return ""


def _addresses() -> dict[str, str]:
    """By interface; of those that have an IPv4 address."""
    found = {}
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as socket:
        for _, name in sockets.if_nameindex():
            with contextlib.suppress(OSError):
                # An ifreq: a name of 16 bytes with its NUL; then a sockaddr_in, whose address follows family
                # and port.
                answer = fcntl.ioctl(socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = sockets.inet_ntoa(answer[20:24])
    return found
