"""Where a model's files come from: the shapes of `source.uri`, checked alike by the API server and here."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, NamedTuple

from pydantic import AfterValidator, Field

from headrace.api.cel import Form, Rule
from headrace.api.common import ApiType, SubdomainName


class UriShape(NamedTuple):
    """What a URI of one scheme looks like."""

    pattern: str  # RE2 and Python read it alike
    message: str


_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
SCHEMES = "uri must begin with builtin://, pvc:// or hf://"
URI_SHAPES = {
    "builtin": UriShape(r"^builtin://demo$", "the only built-in model is builtin://demo"),
    "pvc": UriShape(
        rf"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/{_SEGMENT})+/?$",
        "a pvc uri names a claim and a folder in it: pvc://CLAIM/PATH",
    ),
    "hf": UriShape(
        rf"^hf://{_SEGMENT}/{_SEGMENT}(@[A-Za-z0-9._/-]+)?$",
        "an hf uri names an organization and a repository: hf://ORG/NAME or hf://ORG/NAME@REVISION",
    ),
}


def _check_uri(uri: str) -> str:
    shape = URI_SHAPES.get(uri.split("://", 1)[0]) if "://" in uri else None
    if shape is None:
        raise ValueError(SCHEMES)
    if not re.fullmatch(shape.pattern, uri):
        raise ValueError(shape.message)
    return uri


def _uri_rules() -> tuple[Rule, ...]:
    known = " || ".join(f"self.uri.startsWith('{scheme}://')" for scheme in URI_SHAPES)
    shapes = (
        Rule(f"!self.uri.startsWith('{scheme}://') || self.uri.matches(r'{pattern}')", message, field=".uri")
        for scheme, (pattern, message) in URI_SHAPES.items()
    )
    return Rule(known, SCHEMES, field=".uri"), *shapes


class SecretKeyRef(ApiType):
    """A key of a Secret in the same namespace; kubelet mounts it, the operator never reads it."""

    name: SubdomainName = Field(description="Name of the Secret, in the same namespace.")
    key: Annotated[
        str,
        Field(min_length=1, max_length=253),
        Form(r"^[-._a-zA-Z0-9]+$", "must consist of letters, digits, -, _ and ."),
    ] = Field("token", description="Key in the Secret whose value is the token.")


class Source(ApiType):
    """Where the model's files come from."""

    uri: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_check_uri)] = Field(
        description="builtin://demo (inside the engine's image), pvc://CLAIM/PATH (a folder of a "
        "PersistentVolumeClaim), or hf://ORG/NAME@REVISION (a hub repository; without @REVISION its main branch)."
    )
    secret_ref: SecretKeyRef | None = Field(None, description="Token for a gated hub repository; only with hf://.")

    rules: ClassVar[tuple[Rule, ...]] = (
        *_uri_rules(),
        Rule(
            "!has(self.secretRef) || self.uri.startsWith('hf://')",
            "secretRef is the token of a hub: it goes with an hf:// uri only",
            field=".secretRef",
            holds=lambda source: source.secret_ref is None or source.scheme == "hf",
        ),
    )

    @property
    def scheme(self) -> str:
        """builtin, pvc or hf."""
        return self.uri.split("://", 1)[0]

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim of a pvc source."""
        return self.uri.split("://", 1)[1].split("/", 1)[0] if self.scheme == "pvc" else None
