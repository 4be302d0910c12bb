"""Kubeconfig files, self-contained. JSON, which every reader of YAML takes."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.pki import Pair


def render(server: str, authority: Pair, user: dict[str, str], cluster: str = "headrace") -> str:
    """A kubeconfig for one user of one cluster; `user` is `client_pair(...)` or `{"token": ...}`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster, "cluster": {"server": server, "certificate-authority-data": authority.cert_data}}
        ],
        "users": [{"name": cluster, "user": user}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster, "namespace": "default"}}],
        "current-context": cluster,
    }
    return json.dumps(document, indent=1) + "\n"


def client_pair(pair: Pair) -> dict[str, str]:
    """The user entry of a client certificate."""
    return {"client-certificate-data": pair.cert_data, "client-key-data": pair.key_data}


def write(path: Path, content: str) -> Path:
    """Write a kubeconfig that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(content)
    return path
