"""Why an engine cannot start or must end: one error with the words of the termination log."""

from __future__ import annotations


class StartError(Exception):
    """The engine cannot serve this model here.

    `reason` is CamelCase, as in a Termination (OutOfMemory, ModelInvalid, ArchitectureUnsupported); `file` is the file
    at fault, relative to the model folder.
    """

    def __init__(self, reason: str, message: str, file: str = ""):
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.file = file
