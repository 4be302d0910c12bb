"""Downloads from a model hub: a fixed revision, only what serving needs, a bounded number of attempts."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.core.failure import StartError
from headrace_engine.fetch.headers import SINGLE
from headrace_engine.fetch.sources import Hub
from headrace_engine.models.digest import INDEX

log = logging.getLogger(__name__)

WANTED = ("*.json", "*.safetensors", "*.jinja")
UNWANTED = ("*/*", "consolidated*")  # weights in other layouts
PAUSES_S = (1.0, 4.0)  # between attempts, where the hub did not answer
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Access:
    """How to reach the hub."""

    endpoint: str | None  # None: the library's own
    token: str | None

    @classmethod
    def of_environment(cls) -> Access:
        """HF_ENDPOINT, HF_TOKEN."""
        return cls(os.environ.get("HF_ENDPOINT") or None, os.environ.get("HF_TOKEN") or None)


def download(hub: Hub, into: Path, access: Access, sleep: Callable[[float], None] = time.sleep) -> str:
    """Downloads the repository into a folder; what is there already is not fetched again. Returns the commit.

    Raises StartError: SourceNotFound, SourceUnauthorized, SourceUnreachable, ModelIncomplete, OutOfDisk.
    """
    for pause in (*PAUSES_S, None):
        try:
            return _attempt(hub, into, access)
        except StartError as error:
            if error.reason != "SourceUnreachable" or pause is None:
                raise
            log.warning("hub did not answer, trying again", extra={"pause_s": pause, "error": error.message})
            sleep(pause)
    raise StartError("SourceUnreachable", "no attempt was made")


def _attempt(hub: Hub, into: Path, access: Access) -> str:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HOME", str(into.parent / ".hub"))
    import huggingface_hub  # after the settings, which are read once

    api = huggingface_hub.HfApi(endpoint=access.endpoint, token=access.token or False)
    try:
        info = api.model_info(hub.repository, revision=hub.revision, files_metadata=True, timeout=_TIMEOUT_S)
        _check_listing(hub, info.siblings or [], into)
        api.snapshot_download(
            hub.repository,
            revision=info.sha,
            local_dir=into,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            max_workers=4,
        )
    except StartError:
        raise
    except Exception as error:  # the library's HTTP client brings a tree of its own
        raise _translated(hub, error) from error
    return str(info.sha)


def _check_listing(hub: Hub, siblings: Iterable[Any], into: Path) -> None:
    """What the repository lacks is said before gigabytes are moved."""
    sizes = {item.rfilename: item.size or 0 for item in siblings}
    for name in ("config.json", "tokenizer.json"):
        if name not in sizes:
            raise StartError("ModelIncomplete", f"{hub.repository} has no {name}", name)
    if SINGLE not in sizes and INDEX not in sizes:
        raise StartError("ModelIncomplete", f"{hub.repository} has neither {SINGLE} nor {INDEX}", SINGLE)
    total = sum(size for name, size in sizes.items() if name.endswith(".safetensors") and "/" not in name)
    into.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(into).free + sum(path.stat().st_size for path in into.glob("*.safetensors"))
    if total > free:
        raise StartError("OutOfDisk", f"the weights of {hub.repository} have {total} bytes, {free} are free")
    log.info("downloading", extra={"repository": hub.repository, "weights_bytes": total})


def _translated(hub: Hub, error: BaseException) -> StartError:
    """An error of the hub's library in our words."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or status in (401, 403):
        return StartError(
            "SourceUnauthorized",
            f"{hub.repository} does not exist or this token may not read it; set source.secretRef (HF_TOKEN)",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return StartError("SourceNotFound", f"{hub.repository} has no revision {hub.revision}")
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        file = str(getattr(getattr(error, "response", None), "url", "")).partition("/resolve/")[2].partition("/")[2]
        return StartError("ModelIncomplete", f"{hub.repository} lists {file}, but does not have it", file)
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return StartError("SourceNotFound", f"there is no repository {hub.repository}")
    if isinstance(error, errors.HFValidationError):
        return StartError("SourceInvalid", _first_line(error))
    return StartError("SourceUnreachable", f"{hub.repository}: {type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
