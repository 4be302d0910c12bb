"""Weights from safetensors: mapped, not read, until they are used; each tensor checked by name and shape."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace_engine.core.failure import StartError
from headrace_engine.models.digest import INDEX
from headrace_engine.models.mapped import drop_pages

SINGLE = "model.safetensors"


class Weights:
    """The tensors of a model folder, single file or sharded, in one target dtype."""

    def __init__(self, folder: Path, dtype: torch.dtype):
        """Raises StartError naming the file that is missing or broken."""
        self._folder = folder
        self.dtype = dtype
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._where = self._locate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        drop_pages(self._folder)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def get(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape in the target dtype; a view of the mapped file where dtypes agree."""
        file = self._where.get(name)
        if file is None:
            raise StartError("ModelInvalid", f"tensor {name} is missing", INDEX if self._sharded else SINGLE)
        try:
            tensor: Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise StartError("ModelInvalid", f"{file}: tensor {name}: {error}", file) from error
        if tuple(tensor.shape) != shape:
            message = f"{file}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}"
            raise StartError("ModelInvalid", message, file)
        return tensor.to(self.dtype)

    @property
    def _sharded(self) -> bool:
        return (self._folder / INDEX).exists()

    def _locate(self) -> dict[str, str]:
        """File by tensor name."""
        if not self._sharded:
            return dict.fromkeys(self._open(SINGLE).keys(), SINGLE)
        try:
            names = json.loads((self._folder / INDEX).read_bytes())["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartError("ModelInvalid", f"{INDEX} cannot be read: {error!r}", INDEX) from error
        if not isinstance(names, dict) or not all(_plain(file) for file in names.values()):
            raise StartError("ModelInvalid", f"{INDEX}: weight_map must give a file name by tensor", INDEX)
        for file in sorted(set(names.values())):
            held = set(self._open(file).keys())
            lost = next((name for name, at in names.items() if at == file and name not in held), None)
            if lost is not None:
                raise StartError("ModelInvalid", f"{file}: tensor {lost} is missing", file)
        return names

    def _open(self, file: str) -> Any:
        if file not in self._files:
            path = self._folder / file
            if not path.exists():
                raise StartError("ModelInvalid", f"{file} is missing in {self._folder.name}", file)
            try:
                self._files[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise StartError("ModelInvalid", f"{file} cannot be read: {error}", file) from error
        return self._files[file]


def _plain(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name
