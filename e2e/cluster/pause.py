"""The image that holds a pod's namespaces open."""

from __future__ import annotations

from cluster import binaries, cache
from cluster.oci import Store, file_layer


def ensure(store: Store) -> str:
    """The name of the pause image, built and put into the store if it is not there."""
    binary = binaries.build(binaries.PAUSE)
    content = binary.read_bytes()
    name = f"headrace/pause:{cache.key_of({'pause': content})}"
    if store.find(name) is None:
        store.put(name, file_layer({"pause": content}), {"Entrypoint": ["/pause"], "User": "65535:65535"})
    return name
