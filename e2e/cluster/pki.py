"""Certificates by the openssl tool: one authority per cluster, EC keys, valid ten years."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import require_tools
from cluster.process import run

DAYS = "3650"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, PEM files."""

    cert: Path
    key: Path

    @property
    def cert_data(self) -> str:
        """The certificate as a kubeconfig embeds it."""
        return base64.b64encode(self.cert.read_bytes()).decode()

    @property
    def key_data(self) -> str:
        """The private key as a kubeconfig embeds it."""
        return base64.b64encode(self.key.read_bytes()).decode()


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder of its own."""

    folder: Path
    pair: Pair

    @staticmethod
    def create(folder: Path) -> Authority:
        """Make the folder, the authority's key and its self-signed certificate."""
        require_tools("openssl")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        pair = Pair(folder / "ca.crt", folder / "ca.key")
        extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        run(
            ["openssl", "req", "-x509", *NEW_KEY, "-days", DAYS, "-subj", "/CN=headrace-ca", *_files(pair), *extensions]
        )
        return Authority(folder, pair)

    def issue(self, name: str, subject: str, hosts: Sequence[str] = ()) -> Pair:
        """A certificate `name`.crt for `subject` (openssl's `/O=.../CN=...`).

        With `hosts` (`IP:1.2.3.4` or `DNS:name`) it is good for a server too.
        """
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        usage = "extendedKeyUsage=clientAuth" + (",serverAuth" if hosts else "")
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", usage]
        if hosts:
            extensions += ["-addext", f"subjectAltName={','.join(hosts)}"]
        signer = ("-CA", str(self.pair.cert), "-CAkey", str(self.pair.key))
        run(["openssl", "req", "-x509", *NEW_KEY, *signer, "-days", DAYS, "-subj", subject, *_files(pair), *extensions])
        return pair


def signing_key(folder: Path, name: str) -> Pair:
    """A bare key pair (`.cert` is the public key) for service account tokens."""
    pair = Pair(folder / f"{name}.pub", folder / f"{name}.key")
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", pair.key])
    run(["openssl", "ec", "-in", pair.key, "-pubout", "-out", pair.cert])
    return pair


def _files(pair: Pair) -> tuple[str, ...]:
    return ("-keyout", str(pair.key), "-out", str(pair.cert))
