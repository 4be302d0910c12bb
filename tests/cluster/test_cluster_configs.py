"""Configuration files of the node's parts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from cluster import configs, parts
from cluster.addresses import choose
from cluster.paths import Layout
from cluster.pki import Authority, Pair

DEMO, TEST = choose("demo", []), choose("test", [])
HOME = Layout(Path("/state/demo"))


def test_containerd_keeps_images_outside_of_what_down_removes() -> None:
    config = tomllib.loads(configs.containerd(HOME, "headrace/pause:1"))
    assert config["root"] == "/state/demo/images"
    assert config["state"].startswith("/state/demo/run/")
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "headrace/pause:1"
    assert cri["restrict_oom_score_adj"] is True
    assert cri["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False


def test_kubelets_of_two_instances_do_not_share_a_control_group() -> None:
    """Each removes groups of pods that it does not know."""
    roots = {json.loads(configs.kubelet(plan, HOME))["cgroupRoot"] for plan in (DEMO, TEST)}
    assert roots == {"/headrace-demo", "/headrace-test"}


def test_pods_ask_the_cluster_dns_alone() -> None:
    config = json.loads(configs.kubelet(DEMO, HOME))
    assert config["clusterDNS"] == [DEMO.node_ip]
    assert config["resolvConf"] == ""
    assert f"bind {DEMO.node_ip}" in configs.corefile(DEMO, HOME)


def test_pod_network_agrees_with_the_plan() -> None:
    bridge = json.loads(configs.cni(DEMO, HOME))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": DEMO.pod_cidr, "gateway": DEMO.node_ip}]]
    assert json.loads(configs.kube_proxy(DEMO, HOME))["clusterCIDR"] == DEMO.pod_cidr


def test_gpus_are_counted_in_capacity_and_allocatable() -> None:
    assert json.loads(configs.gpu_patch(2)) == {
        "status": {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}
    }


def _commands(name: str) -> dict[str, list[str]]:
    pair = Pair(Path("/pki/x.crt"), Path("/pki/x.key"))
    credentials = parts.Credentials(Authority(Path("/pki"), pair), pair, pair, pair, pair)
    return parts.commands(choose(name, []), Layout(Path("/state") / name), "/bin/kube", credentials)


def test_every_part_has_a_command() -> None:
    assert set(_commands("demo")) == {
        *("etcd", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        *("kubelet", "kube-proxy", "coredns"),
    }


@pytest.mark.parametrize("part", ["kube-apiserver", "kube-controller-manager"])
def test_no_path_of_one_instance_is_used_by_another(part: str) -> None:
    assert not any("/state/demo" in word for word in _commands("test")[part])


def test_api_server_authorizes_nodes_and_roles() -> None:
    command = _commands("demo")["kube-apiserver"]
    assert "--authorization-mode=Node,RBAC" in command
    assert f"--service-cluster-ip-range={DEMO.service_cidr}" in command
