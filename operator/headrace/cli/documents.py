"""Headrace's objects in files that people give: strict where objects from the API server are lenient."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.api.broken import Broken, broken_rules
from headrace.api.common import API_VERSION, GROUP, ApiType
from headrace.api.crd import KINDS
from headrace.cli.main import UsageError

_TYPES = {kind.name: kind.type for kind in KINDS}
_TOP = {"apiVersion", "kind", "metadata", "spec", "status"}
_T = TypeVar("_T", bound=ApiType)


@dataclass(frozen=True)
class Document:
    """An object, and where it stands."""

    file: str
    number: int  # of the document in its file, from 1
    name: str
    namespace: str
    object: ApiType

    @property
    def place(self) -> str:
        """For messages: file, document, kind and name."""
        return f"{self.file}, document {self.number} ({type(self.object).__name__} {self.name})"


class Documents:
    """Objects by kind and name."""

    def __init__(self, found: Sequence[Document]):
        self._found = found

    def of(self, kind: type[_T]) -> list[tuple[Document, _T]]:
        """All of a kind, in the order of the files."""
        return [(one, one.object) for one in self._found if isinstance(one.object, kind)]

    def find(self, kind: type[_T], name: str, namespace: str) -> _T | None:
        """The object of this name in the namespace, or None."""
        for document, found in self.of(kind):
            if (document.name, document.namespace) == (name, namespace):
                return found
        return None


def read(paths: Sequence[str]) -> Documents:
    """Headrace's objects in YAML files ("-": stdin); those of other groups are passed over.

    Raises UsageError that lists all that is wrong, one line each.
    """
    found: dict[tuple[str, str, str], Document] = {}
    wrong: list[str] = []
    for file, number, raw in (one for path in paths for one in _read(path)):
        try:
            for document in _parse(file, number, raw):
                key = (type(document.object).__name__, document.namespace, document.name)
                if key in found:
                    raise UsageError(f"{document.place}: stands in {found[key].place}, too")
                found[key] = document
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("\n".join(wrong))
    return Documents(list(found.values()))


def _read(path: str) -> Iterator[tuple[str, int, object]]:
    """The documents of a file, with its name and their numbers. Raises UsageError."""
    import yaml

    from headrace.cli.manifests import load_all

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        documents = load_all(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    for number, raw in enumerate(documents, start=1):
        if raw is not None:
            yield path, number, raw


def _parse(path: str, number: int, raw: object) -> Iterator[Document]:
    place = f"{path}, document {number}"
    if not isinstance(raw, dict) or not isinstance(raw.get("apiVersion"), str) or not isinstance(raw.get("kind"), str):
        raise UsageError(f"{place}: is no Kubernetes object: apiVersion and kind are missing")
    version, kind = raw["apiVersion"], raw["kind"]
    if version.split("/")[0] != GROUP:
        return
    if version != API_VERSION:
        raise UsageError(f"{place}: apiVersion: {version} is unknown; known: {API_VERSION}")
    if kind not in _TYPES:
        raise UsageError(f"{place}: kind: {kind} is unknown; known: {', '.join(_TYPES)}")
    metadata = raw.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise UsageError(f"{place} ({kind}): metadata.name: is required")
    place = f"{place} ({kind} {metadata['name']})"
    _check_name(place, kind, metadata["name"])
    unknown = sorted(str(key) for key in raw.keys() - _TOP)
    if unknown:
        raise UsageError(f"{place}: {unknown[0]}: unknown field")
    yield _document(path, number, (place, _TYPES[kind]), raw)


def _check_name(place: str, kind: str, name: str) -> None:
    """As the API server does. Raises UsageError."""
    rules = next(known for known in KINDS if known.name == kind)
    if len(name) > rules.name_length:
        raise UsageError(f"{place}: metadata.name: may not be longer than {rules.name_length}")
    if not re.fullmatch(rules.name_pattern, name):
        raise UsageError(f"{place}: {rules.name_rule}")


def _document(path: str, number: int, known: tuple[str, type[ApiType]], raw: dict[str, Any]) -> Document:
    place, kind = known
    metadata = raw["metadata"]
    namespace = str(metadata.get("namespace", "default"))
    spec = _spec(place, kind, raw.get("spec"))
    whole = kind.model_validate({"metadata": {"name": metadata["name"], "namespace": namespace}, "spec": spec})
    return Document(path, number, metadata["name"], namespace, whole)


def _spec(place: str, kind: type[ApiType], raw: object) -> ApiType:
    """The spec, in which unknown fields are errors."""
    spec = kind.model_fields["spec"].annotation
    if not (isinstance(spec, type) and issubclass(spec, ApiType)):
        raise TypeError(f"{kind.__name__} has no spec")
    if raw is None:
        raise UsageError(f"{place}: spec: is required")
    try:
        given = spec.model_validate(raw, extra="forbid", by_alias=True, by_name=False)
    except ValidationError as error:
        raise UsageError(_told(place, [(_path(one), _message(one)) for one in error.errors()])) from error
    broken = list(broken_rules(given, "spec"))
    if broken:
        raise UsageError(_told(place, broken))
    return given


def _told(place: str, wrong: Sequence[Broken]) -> str:
    """One line each, without repetitions."""
    return "\n".join(dict.fromkeys(f"{place}: {path}: {message}" for path, message in wrong))


def _path(error: ErrorDetails) -> str:
    """Path of the field as kubectl writes it: `spec.classes[0].ttft`."""
    path = "spec"
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field"
    if error["type"] == "missing":
        return "is required"
    said = (
        error["msg"].removeprefix("Value error, ").replace("Input should", "should").replace("String should", "should")
    )
    if error["type"] == "literal_error" and error["input"] is False:
        said += "; in YAML put Off into quotes, it reads as false otherwise"
    return said[:1].lower() + said[1:]
