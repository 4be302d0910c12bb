"""Credentials: where they come from, and that none of them stays in a file of ours."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from cluster.pki import Authority
from headrace.cluster.client import connect
from headrace.cluster.connection import from_kubeconfig, in_cluster
from headrace.cluster.errors import NotConfigured


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the process takes for its temporary folder; empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left(folder: Path) -> list[str]:
    """What lies in a folder."""
    return [file.name for file in folder.iterdir()]


def kubeconfig(folder: Path, authority: Authority, *, embedded: bool, comment: str = "") -> Path:
    """A kubeconfig with a client certificate, embedded or by name."""
    pair = authority.issue(f"user-{folder.name}-{embedded}"[:40], "/CN=user")
    files = {"certificate-authority": authority.pair.cert, "client-certificate": pair.cert, "client-key": pair.key}
    fields = {}
    for name, file in files.items():
        text = comment + file.read_text()
        copy = folder / file.name
        copy.write_text(text)
        fields[name] = f"{name}-data: {base64.b64encode(text.encode()).decode()}" if embedded else f"{name}: {copy}"
    path = folder / "config"
    path.write_text(
        textwrap.dedent(
            f"""
            apiVersion: v1
            kind: Config
            clusters: [{{name: a, cluster: {{server: "https://127.0.0.1:9", {fields["certificate-authority"]}}}}}]
            users: [{{name: u, user: {{{fields["client-certificate"]}, {fields["client-key"]}}}}}]
            contexts: [{{name: c, context: {{cluster: a, user: u}}}}]
            current-context: c
            """
        )
    )
    return path


@pytest.mark.parametrize("embedded", [True, False], ids=["embedded", "named files"])
def test_a_client_certificate_leaves_no_file(
    tmp_path: Path, scratch: Path, authority: Authority, embedded: bool
) -> None:
    path = kubeconfig(tmp_path, authority, embedded=embedded)

    async def main() -> None:
        connection = await from_kubeconfig(str(path))
        assert left(scratch) == []
        assert connection.certificate and connection.key and connection.ca
        context = connection.ssl_context()
        assert left(scratch) == []
        assert len(context.get_ca_certs()) == 1
        again = await from_kubeconfig(str(path))
        assert again.certificate == connection.certificate, "the loader's own memory of files is not in the way"
        assert await again.token() is None
        assert left(scratch) == []

    asyncio.run(main())


def test_words_around_a_certificate_do_not_matter(tmp_path: Path, scratch: Path, authority: Authority) -> None:
    path = kubeconfig(tmp_path, authority, embedded=True, comment="# Aussteller: Prüfstelle\n")
    connection = asyncio.run(from_kubeconfig(str(path)))
    assert connection.ca is not None and connection.ca.startswith("-----BEGIN CERTIFICATE-----")
    assert connection.ssl_context().verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_that_is_none_is_told(tmp_path: Path, scratch: Path, authority: Authority) -> None:
    path = kubeconfig(tmp_path, authority, embedded=False)
    (tmp_path / authority.pair.cert.name).write_text("hello")
    with pytest.raises(NotConfigured, match=r"holds no PEM block.*set KUBECONFIG"):
        asyncio.run(connect(str(path)))


def test_a_pod_without_its_authority_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    (tmp_path / "token").write_text("t")
    with pytest.raises(NotConfigured, match=r"no readable ca\.crt"):
        in_cluster(tmp_path)


def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path, scratch: Path, authority: Authority) -> None:
    path = kubeconfig(tmp_path, authority, embedded=True)
    code = f"""
        import asyncio
        from headrace.cluster.client import connect
        async def main():
            client = await connect({str(path)!r})
            print("connected", flush=True)
            await asyncio.Event().wait()
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "connected\n"
        process.send_signal(signal.SIGKILL)
    assert left(scratch) == []
