"""The address at which others reach this machine."""

from __future__ import annotations

import socket

import pytest

from elasticflow.errors import ConfigError
from elasticflow.process import network
from elasticflow.process.network import LOOPBACK, own_address

CARDS = {"lo": "127.0.0.1", "eth0": "10.1.2.3", "ib0": "192.168.7.8"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with these names, besides its cards."""
    names = {"node7": "10.1.2.3", "node7-ib": "192.168.7.8", "node8": "10.1.2.4"}

    def resolve(name: str) -> str:
        if name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return names[name]

    monkeypatch.setattr(network, "_addresses", lambda: dict(CARDS))
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    return names


def test_this_machine_has_an_address_that_can_be_listened_at() -> None:
    with socket.socket() as listener:
        listener.bind((own_address(), 0))


def test_the_loopback_is_an_address_of_this_machine() -> None:
    assert own_address("lo") == own_address(LOOPBACK) == own_address("127.0.0.0/8") == LOOPBACK


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", "10.1.2.3"),
        ("ib0", "192.168.7.8"),
        ("192.168.0.0/16", "192.168.7.8"),
        ("10.1.2.99/24", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("node7-ib", "192.168.7.8"),
        ("lo", "127.0.0.1"),
    ],
)
def test_what_may_be_wanted(machine: dict[str, str], wanted: str, found: str) -> None:
    assert own_address(wanted) == found


@pytest.mark.parametrize("named", ["127.0.1.1", "10.9.9.9", ""])
def test_a_name_that_stands_for_no_address_others_reach(machine: dict[str, str], named: str) -> None:
    """Debian's own name is 127.0.1.1; on others it is not known at all, or is an old one."""
    machine.pop("node7")
    if named:
        machine["node7"] = named
    assert own_address() == "10.1.2.3"


def test_where_no_name_helps_the_way_to_the_master_does(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the first card, which may be a bridge for containers."""
    machine.pop("node7")
    monkeypatch.setattr(network, "_addresses", lambda: {"docker0": "172.17.0.1", **CARDS})
    monkeypatch.setattr(network, "_source", {"10.1.2.4": "10.1.2.3", "lo": LOOPBACK}.get)
    assert own_address("", "10.1.2.4") == "10.1.2.3"
    assert own_address("", "lo") == own_address("", "") == "172.17.0.1"


def test_a_link_to_the_boards_controller_is_no_way_to_others(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.pop("node7")
    monkeypatch.setattr(network, "_addresses", lambda: {"usb0": "169.254.3.1", **CARDS})
    assert own_address() == "10.1.2.3"


@pytest.mark.parametrize("towards", ["", "no such name", "\0", "é" * 80, "a." * 200])
def test_odd_machines_to_go_to_do_no_harm(towards: str) -> None:
    assert own_address("", towards)


def test_this_machine_speaks_to_itself_from_its_own_address() -> None:
    assert network._source("127.0.0.1") == "127.0.0.1"


def test_the_name_decides_between_several(machine: dict[str, str]) -> None:
    machine["node7"] = "192.168.7.8"
    assert own_address() == "192.168.7.8"


def test_a_machine_with_nothing_but_the_loopback(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_addresses", lambda: {"lo": LOOPBACK})
    assert own_address() == LOOPBACK


@pytest.mark.parametrize(
    "wanted", ["10.2.0.0/16", "ib1", "node8", "10.1.2.4", "fe80::/10", "no such name", "é" * 80]
)
def test_what_this_machine_does_not_have(machine: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        own_address(wanted)
    text = str(caught.value)
    assert repr(wanted) in text and "node7" in text
    assert "lo 127.0.0.1, eth0 10.1.2.3, ib0 192.168.7.8" in text


@pytest.mark.parametrize("wanted", ["é" * 80, "a." * 200, ".", "\0", "x" * 64])
def test_odd_names_are_an_error_of_the_settings(wanted: str) -> None:
    with pytest.raises(ConfigError, match="host:"):
        own_address(wanted)
