"""`fetch URI --into DIR`: the model of a URI as DIR/model, checked."""

from __future__ import annotations

import logging
from pathlib import Path

from headrace_engine.core.failure import StartError
from headrace_engine.fetch.hub import Access, download
from headrace_engine.fetch.sources import Builtin, Volume, parse
from headrace_engine.fetch.validate import validate
from headrace_wire.shape import Termination

log = logging.getLogger(__name__)

DEMO = Path(__file__).parents[1] / "demo" / "model"
FOLDER = "model"


def fetch(uri: str, into: Path, *, pvc_root: Path, access: Access | None = None) -> Termination:
    """What goes to the termination log. Raises StartError."""
    source = parse(uri)
    folder = into / FOLDER
    try:
        into.mkdir(parents=True, exist_ok=True)
        revision = ""
        if isinstance(source, Builtin):
            _link(folder, DEMO)
        elif isinstance(source, Volume):
            _link(folder, _inside(pvc_root, source))
        else:
            if folder.is_symlink():
                folder.unlink()
            revision = download(source, folder, access or Access.of_environment())
    except OSError as error:
        raise StartError("SourceInvalid", f"{error.filename or into}: {error.strerror or error}") from error
    valid = validate(folder)
    return Termination(
        shape=valid.shape,
        revision=revision or valid.digest[:12],
        digest=valid.digest,
        weights_bytes=valid.weights_bytes,
    )


def _inside(root: Path, source: Volume) -> Path:
    """The folder of the volume. Raises StartError where it is not there, or a link leads out of the volume."""
    if not root.is_dir():
        raise StartError("SourceNotFound", f"the claim {source.claim} is not mounted at {root}")
    folder = (root / source.path).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise StartError("SourceInvalid", f"pvc://{source.claim}/{source.path} leads out of the volume")
    if not folder.is_dir():
        raise StartError("SourceNotFound", f"the claim {source.claim} has no folder {source.path}")
    return folder


def _link(link: Path, target: Path) -> None:
    if link.is_symlink():
        link.unlink()
    if link.exists():
        raise StartError("SourceInvalid", f"{link} exists and is no link: give another folder")
    link.symlink_to(target, target_is_directory=True)
