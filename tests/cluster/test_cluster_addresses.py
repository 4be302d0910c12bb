"""Names and addresses of instances."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.addresses import Plan, check_name, choose
from cluster.errors import ClusterError

NAMES = st.from_regex(r"\A[a-z][a-z0-9]{0,9}\Z")


@given(name=NAMES)
def test_every_address_lies_in_the_instance_network_and_none_twice(name: str) -> None:
    plan = choose(name, [])
    network = ipaddress.ip_network(plan.network)
    addresses = [plan.node_ip, plan.machine_ip, plan.uplink_ip, plan.kubernetes_service]
    ranges = [ipaddress.ip_network(one) for one in (plan.pod_cidr, plan.service_cidr, f"{plan.machine_ip}/30")[:2]]
    assert all(ipaddress.ip_address(address) in network for address in addresses)
    assert len(set(addresses)) == len(addresses)
    assert all(one.subnet_of(network) for one in ranges)  # type: ignore[arg-type]
    assert not ranges[0].overlaps(ranges[1])


@given(name=NAMES)
def test_interface_name_fits_the_kernel(name: str) -> None:
    assert len(choose(name, []).veth) <= 15


def test_demo_and_test_get_networks_of_their_own() -> None:
    assert choose("demo", []).network != choose("test", []).network


def test_same_name_gives_the_same_plan() -> None:
    assert choose("demo", []) == choose("demo", ["192.168.0.0/16"])


@given(name=NAMES, wider=st.booleans())
def test_a_network_that_the_machine_routes_is_avoided(name: str, wider: bool) -> None:
    first = choose(name, [])
    taken = f"10.{first.octet}.64.0/24" if not wider else f"10.{first.octet}.0.0/15"
    second = choose(name, [taken])
    assert not ipaddress.ip_network(second.network).overlaps(ipaddress.ip_network(taken, strict=False))


def test_no_free_network_is_said() -> None:
    with pytest.raises(ClusterError, match="no free network"):
        choose("demo", ["10.0.0.0/8"])


@pytest.mark.parametrize("name", ["", "Demo", "1demo", "de-mo", "elevenchars", "a/b"])
def test_name_that_cannot_be_an_instance_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="--name"):
        check_name(name)


def test_api_url_is_the_address_that_the_machine_reaches() -> None:
    assert Plan("demo", 130).api_url == "https://10.130.64.2:6443"
