"""Keys of KV blocks: a tagged SHA-256 chain over full pages of tokens.

Equal keys mean equal KV: the chain starts at H(cache root, salt, adapter digest), so a prefix is shared only where
model, layout, dtype, epoch, tenant salt and adapter agree. Fields are framed by their length, so no two inputs collide
by concatenation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from headrace_wire.protocol import PAGE_TOKENS

TOKEN_BYTES = 4  # little-endian int32


def _digest(tag: bytes, parts: Iterable[bytes]) -> bytes:
    h = hashlib.sha256()
    for part in (tag, *parts):
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.digest()


def chain_root(cache_root: str, salt: bytes = b"", adapter: bytes | None = None) -> bytes:
    """The parent of a request's first block. `cache_root` is the opaque hex string that the engine reports."""
    return _digest(
        b"headrace.block.root.v1", (bytes.fromhex(cache_root), salt, b"" if adapter is None else b"\x01" + adapter)
    )


def block_key(parent: bytes, page: bytes) -> bytes:
    """The key of one full page: `page` holds PAGE_TOKENS token ids as little-endian int32."""
    return _digest(b"headrace.block.v1", (parent, page))


def block_keys(root: bytes, tokens: bytes, page_tokens: int = PAGE_TOKENS) -> list[bytes]:
    """Keys of all full pages of a prompt (`tokens`: little-endian int32 ids); a partial last page has none."""
    size = page_tokens * TOKEN_BYTES
    keys: list[bytes] = []
    parent = root
    for start in range(0, len(tokens) - size + 1, size):
        parent = block_key(parent, tokens[start : start + size])
        keys.append(parent)
    return keys


def tenant_salt(model_uid: str, scope: str, owner: str) -> str:
    """Hex salt of a tenant's prefix cache on one model.

    `scope` is the Model's `cache.scope`; `owner` the Tenant's uid (tenant), `namespace/group` (group) or "" (shared).
    """
    return _digest(b"headrace.salt.v1", (model_uid.encode(), scope.encode(), owner.encode())).hex()
