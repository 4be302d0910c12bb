"""What `up` writes down for `status` and `down`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.addresses import Plan
from cluster.process import Process


@dataclass(frozen=True)
class Record:
    """One run of an instance."""

    plan: Plan
    kube: str  # path of the binary, which names its version
    pause: str  # image of the sandboxes
    processes: tuple[Process, ...] = ()
    owner: str = ""  # folder of the checkout that brought it up

    def save(self, file: Path) -> None:
        """Write it whole or not at all."""
        draft = file.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.replace(file)

    @staticmethod
    def load(file: Path) -> Record | None:
        """The record, or None if there is none to be read."""
        try:
            data = json.loads(file.read_text())
            processes = tuple(Process(**entry) for entry in data["processes"])
            return Record(Plan(**data["plan"]), data["kube"], data["pause"], processes, data.get("owner", ""))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def process(self, name: str) -> Process | None:
        """The process of a part."""
        return next((process for process in self.processes if process.name == name), None)

    def held_by_other(self, checkout: Path) -> bool:
        """Whether a part still runs that another checkout started; a checkout that is gone holds nothing."""
        if self.owner in ("", str(checkout)) or not Path(self.owner).is_dir():
            return False
        return any(process.alive for process in self.processes)

    def dead(self) -> Sequence[str]:
        """Names of parts that no longer run."""
        return [process.name for process in self.processes if not process.alive]
