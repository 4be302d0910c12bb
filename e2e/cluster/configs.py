"""Configuration files of the node's parts, as text (pure). JSON where YAML is read."""

from __future__ import annotations

import json
from typing import Any

from cluster.addresses import Plan
from cluster.paths import Layout

CNI_BINARIES = "/usr/lib/cni"
DNS_READY_PORT = 8181
PROXY_HEALTH_PORT = 10256
UNUSED = (
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
)


def containerd(layout: Layout, pause: str) -> str:
    """containerd 1.6, CRI with runc and overlayfs.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE a lower score cannot be set, and every sandbox would fail.
    """
    return f"""version = 2
root = "{layout.images}"
state = "{layout.containerd_state}"
disabled_plugins = [{", ".join(f'"{plugin}"' for plugin in UNUSED)}]
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.run / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{layout.run / "runc"}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_BINARIES}"
    conf_dir = "{layout.config / "cni"}"
"""


def cni(plan: Plan, layout: Layout) -> str:
    """Pods on a bridge, addresses from the pod range, host ports."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": plan.pod_cidr, "gateway": plan.node_ip}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(layout.run / "cni"),
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": plan.namespace, "plugins": [bridge, portmap]}, indent=1)


def kubelet(plan: Plan, layout: Layout) -> str:
    """kubelet without systemd, on cgroup v1 or v2, below a cgroup of the instance's own."""
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.namespace}",
        "clusterDNS": [plan.node_ip],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "enforceNodeAllocatable": ["pods"],
        "evictionHard": {"memory.available": "64Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "fileCheckFrequency": "10s",
        "healthzPort": 10248,
        "imageGCHighThresholdPercent": 99,
        "imageGCLowThresholdPercent": 98,
        "nodeStatusUpdateFrequency": "4s",
        "podLogsDir": str(layout.pod_logs),
        "resolvConf": "",
        "shutdownGracePeriod": "0s",
        "syncFrequency": "10s",
        "tlsCertFile": str(layout.pki / "kubelet-serving.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-serving.key"),
        "volumePluginDir": str(layout.run / "volume-plugins"),
    }
    return json.dumps(document, indent=1)


def kube_proxy(plan: Plan, layout: Layout) -> str:
    """Services by iptables; conntrack's limits are left alone, since they cannot be raised in a namespace."""
    document: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": plan.node_ip,
        "clientConnection": {"kubeconfig": str(layout.config / "kube-proxy.kubeconfig")},
        "clusterCIDR": plan.pod_cidr,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": f"{plan.node_ip}:{PROXY_HEALTH_PORT}",
        "hostnameOverride": plan.namespace,
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        "metricsBindAddress": "127.0.0.1:10249",
    }
    return json.dumps(document, indent=1)


def corefile(plan: Plan, layout: Layout) -> str:
    """DNS of the cluster's own names, on the bridge; the namespace has no way out, so nothing is forwarded."""
    return f""".:53 {{
  bind {plan.node_ip}
  errors
  ready {plan.node_ip}:{DNS_READY_PORT}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {layout.config / "coredns.kubeconfig"}
    ttl 5
  }}
  cache 5
}}
"""


def dns_access() -> dict[str, str]:
    """What CoreDNS may read: objects to create, by the path of their collection."""
    group = "rbac.authorization.k8s.io"
    name = "headrace:coredns"
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    api = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    role = {**api, "kind": "ClusterRole", "rules": rules}
    binding = {
        **api,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "coredns"}],
    }
    return {
        f"/apis/{group}/v1/clusterroles": json.dumps(role),
        f"/apis/{group}/v1/clusterrolebindings": json.dumps(binding),
    }


def gpu_patch(count: int) -> str:
    """A status patch that gives the node `count` GPUs that are only counted."""
    room = {"nvidia.com/gpu": str(count)}
    return json.dumps({"status": {"capacity": room, "allocatable": room}})
