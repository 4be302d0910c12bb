"""Which rules of the API server an object from a file breaks, beyond the bounds of its fields. Pure.

Only for files: an object that was read from the API server was admitted there, and is not judged again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from headrace.api.cel import Cel, Rule
from headrace.api.common import ApiType, camel

Broken = tuple[str, str]  # path as kubectl writes it, and the sentence
_NUMBERS = re.compile(r"'(?P<text>[^']*)'|self\.(?P<field>\w+)")
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def broken_rules(found: ApiType, path: str) -> Iterator[Broken]:
    """What is wrong with the object at `path`, and with all below it, in the order of the fields."""
    for rule in type(found).rules:
        if rule.holds is not None and not rule.holds(found):
            yield path + rule.field, sentence(rule, found)
    for name, field in type(found).model_fields.items():
        if name in found.model_fields_set:
            yield from _of_value(getattr(found, name), field, f"{path}.{camel(name)}")


def sentence(rule: Rule, found: ApiType) -> str:
    """The rule's message, with the object's numbers where it has some."""
    if not rule.numbers:
        return rule.message
    values = found.model_dump(by_alias=True)
    parts = _NUMBERS.finditer(rule.numbers)
    return "".join(str(values[part["field"]]) if part["field"] else part["text"] for part in parts)


def _of_value(value: object, field: FieldInfo, path: str) -> Iterator[Broken]:
    for rule in field.metadata:
        if isinstance(rule, Cel) and rule.holds is not None and not rule.holds(value):
            yield path, rule.message
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if extra.get("format") == "date-time" and isinstance(value, str) and not _DATE_TIME.fullmatch(value):
        yield path, f"{value[:64]!r}: must be a time of RFC 3339, such as 2027-06-01T18:00:00Z"
    if isinstance(value, ApiType):
        yield from broken_rules(value, path)
    elif isinstance(value, list):
        if extra.get("x-kubernetes-list-type") in ("map", "set"):
            yield from _twice(value, path)
        for index, item in enumerate(value):
            if isinstance(item, ApiType):
                yield from broken_rules(item, f"{path}[{index}]")


def _twice(items: list[object], path: str) -> Iterator[Broken]:
    """Items of one name in a list that knows them by it."""
    seen: set[object] = set()
    for index, item in enumerate(items):
        key = getattr(item, "name", item)
        if key in seen:
            yield f"{path}[{index}]", f"{key!r} stands there twice"
        seen.add(key)
