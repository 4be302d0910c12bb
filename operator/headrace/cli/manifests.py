"""YAML as the tools of Kubernetes read it: dates and numbers to the base of sixty are plain text there."""

from __future__ import annotations

import re

import yaml

_DIGITS = "-+0123456789"


class Loader(yaml.SafeLoader):
    """PyYAML's safe one, without what Kubernetes has no type for."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)$"), list(_DIGITS)
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9_]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$|[-+]?\.inf$|\.nan$"
    ),
    [*_DIGITS, "."],
)


def load_all(text: str) -> list[object]:
    """The documents. Raises yaml.YAMLError."""
    try:
        return list(yaml.load_all(text, Loader=Loader))
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except ValueError as error:  # of a tag that its value does not fit
        raise yaml.YAMLError(str(error)) from error
