"""The parts of a node and how each is started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import configs, kubeconfig, network
from cluster.addresses import API_PORT, Plan
from cluster.cgroups import Groups
from cluster.controlplane import Apiserver, Etcd
from cluster.paths import Layout
from cluster.pki import Authority, Pair, signing_key
from cluster.process import Process, spawn

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USERS = {  # the parts that speak to the API server, by the name RBAC knows
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "coredns": "/CN=coredns",
}


@dataclass(frozen=True)
class Credentials:
    """Everything the parts prove themselves with."""

    authority: Authority
    serving: Pair
    kubelet_client: Pair  # kube-apiserver towards kubelet
    accounts: Pair
    admin: Pair


def write_credentials(plan: Plan, layout: Layout) -> Credentials:
    """Make certificates and a kubeconfig for each part, and the administrator's."""
    authority = Authority.create(layout.pki)
    hosts = [f"IP:{ip}" for ip in (plan.node_ip, plan.uplink_ip, plan.kubernetes_service, "127.0.0.1")]
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    serving = authority.issue("kube-apiserver", "/CN=kube-apiserver", [*hosts, *(f"DNS:{name}" for name in names)])
    authority.issue("kubelet-serving", f"/CN={plan.namespace}", [f"IP:{plan.node_ip}", f"DNS:{plan.namespace}"])
    node = {"kubelet": f"/O=system:nodes/CN=system:node:{plan.namespace}"}
    pairs = {user: authority.issue(user, subject) for user, subject in (USERS | node).items()}
    for user, pair in pairs.items():
        content = kubeconfig.render(plan.api_url, authority.pair, kubeconfig.client_pair(pair), plan.namespace)
        kubeconfig.write(layout.config / f"{user}.kubeconfig", content)
        if user == "admin":
            kubeconfig.write(layout.kubeconfig, content)
    client = authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    return Credentials(authority, serving, client, signing_key(layout.pki, "service-accounts"), pairs["admin"])


def write_configs(plan: Plan, layout: Layout, pause: str) -> None:
    """Write every part's configuration file."""
    (layout.config / "cni").mkdir(parents=True, exist_ok=True)
    files = {
        "containerd.toml": configs.containerd(layout, pause),
        "cni/10-pods.conflist": configs.cni(plan, layout),
        "kubelet.json": configs.kubelet(plan, layout),
        "kube-proxy.json": configs.kube_proxy(plan, layout),
        "Corefile": configs.corefile(plan, layout),
    }
    for name, content in files.items():
        (layout.config / name).write_text(content)


def commands(plan: Plan, layout: Layout, kube: str, credentials: Credentials) -> dict[str, list[str]]:
    """The command line of every part, by its name, in starting order."""
    etcd = Etcd(layout.run / "etcd", 2379, 2380)
    config = layout.config
    manager = config / "kube-controller-manager.kubeconfig"
    scheduler = config / "kube-scheduler.kubeconfig"
    return {
        "etcd": etcd.argv(),
        "containerd": ["containerd", "--config", str(config / "containerd.toml")],
        "kube-apiserver": _apiserver(plan, kube, credentials, etcd).argv(),
        "kube-controller-manager": [
            *_component(kube, "kube-controller-manager", manager),
            f"--service-account-private-key-file={credentials.accounts.key}",
            f"--root-ca-file={credentials.authority.pair.cert}",
            f"--cluster-signing-cert-file={credentials.authority.pair.cert}",
            f"--cluster-signing-key-file={credentials.authority.pair.key}",
            "--use-service-account-credentials",
        ],
        "kube-scheduler": _component(kube, "kube-scheduler", scheduler),
        "kubelet": [
            *(kube, "kubelet"),
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={config / 'kubelet.kubeconfig'}",
            f"--root-dir={layout.kubelet}",
            f"--cert-dir={layout.run / 'kubelet-pki'}",
            f"--hostname-override={plan.namespace}",
            f"--node-ip={plan.node_ip}",
        ],
        "kube-proxy": [kube, "kube-proxy", f"--config={config / 'kube-proxy.json'}"],
        "coredns": [kube, "coredns", "-conf", str(config / "Corefile")],
    }


def start(name: str, command: Sequence[str], plan: Plan, layout: Layout) -> Process:
    """Start a part in the instance's network namespace and its control groups.

    `ip netns exec` would remount /sys, and kubelet would find no control groups.
    """
    joins = "; ".join(f"echo $$ > {file}" for file in Groups(plan.namespace).daemon_files())
    inside = shlex.join([*network.enter(plan.namespace), *command])
    environment = {"PATH": PATH, "HOME": str(layout.run), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
    return spawn(name, ["sh", "-c", f"{joins}; exec {inside}"], layout.log(name), environment)


def _apiserver(plan: Plan, kube: str, credentials: Credentials, etcd: Etcd) -> Apiserver:
    extra = (
        f"--advertise-address={plan.node_ip}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={credentials.authority.pair.cert}",
        f"--kubelet-client-certificate={credentials.kubelet_client.cert}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
    )
    authority = credentials.authority.pair.cert
    return Apiserver(
        kube=kube,
        etcd_url=etcd.url,
        address="0.0.0.0",
        port=API_PORT,
        service_cidr=plan.service_cidr,
        client_ca=authority,
        serving=credentials.serving,
        service_account=credentials.accounts,
        extra=extra,
    )


def _component(kube: str, part: str, config: Path) -> list[str]:
    return [
        *(kube, part, f"--kubeconfig={config}"),
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]
