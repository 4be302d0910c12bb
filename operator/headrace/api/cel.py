"""Validation rules in CEL, declared beside the types that they guard; the API server evaluates them at admission.

Each has a twin in Python for files that never see a server (headrace.api.broken). What is read from the API server is
not checked again: it was admitted, perhaps under older rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

VALIDATIONS = "x-kubernetes-validations"
Holds = Callable[[Any], bool]


@dataclass(frozen=True)
class Rule:
    """A rule of an object."""

    rule: str
    message: str  # the sentence a user sees
    field: str = ""  # path below the object that the message is shown at, such as `.minReplicas`
    numbers: str = ""  # CEL: texts and fields, joined by +, of a message with numbers; `message` where it fails
    holds: Holds | None = None  # the rule of an object in Python; None: its type's validators check it, or no file can

    def as_schema(self) -> JsonDict:
        """An entry of x-kubernetes-validations."""
        entry: JsonDict = {"rule": self.rule, "message": self.message}
        if self.numbers:
            entry["messageExpression"] = self.numbers
        if self.field:
            entry["fieldPath"] = self.field
        return entry


@dataclass(frozen=True)
class Cel:
    """A rule of a single value, put into its annotation: `Annotated[str, Cel("self != ''", "must not be empty")]`."""

    rule: str
    message: str
    holds: Holds | None = None  # the rule of the value in Python; None: a validator checks it

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the value's schema."""
        schema = handler(core)
        return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, []), Rule(self.rule, self.message).as_schema()]}


@dataclass(frozen=True)
class Form:
    """The form of a text, which is told in words where it is another: a pattern alone is shown to users as it is."""

    pattern: str  # a regular expression that Python and RE2 read alike, from ^ to $
    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The text's own schema, and then its form."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the value's schema."""
        return Cel(f"self.matches(r'{self.pattern}')", self.message).__get_pydantic_json_schema__(core, handler)

    def _checked(self, value: str) -> str:
        if re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"{value[:64]!r}: {self.message}")
        return value


def where_formed(pattern: str, rule: str) -> str:
    """A rule that holds its tongue where the text has another form: that has been told already."""
    return f"!self.matches(r'{pattern}') || ({rule})"


@dataclass(frozen=True)
class Structural:
    """Stands in for the generated schema of a value whose keys Python leaves open."""

    schema: JsonDict

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The given schema."""
        return dict(self.schema)
