"""The image that holds a pod's namespaces open."""

from __future__ import annotations

from cluster import binaries, cache, platform
from cluster.oci import Blob, Image, file_layer, single_layer


def image() -> Image:
    """The pause image, its binary compiled if it is not in the cache."""
    content = binaries.build(binaries.PAUSE).read_bytes()
    name = f"headrace/pause:{cache.key_of({'pause': content})}"
    config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    return single_layer(name, Blob.of(file_layer({"pause": content})), config, platform.architecture())
