"""Chat templates in a jinja2 sandbox with limits.

A template comes with a model, so it is somebody's program: it may loop, recurse or multiply strings. Every loop turn
and macro call is counted, every value that can grow is bounded before it is made. Limits are counts, not times, so
gateway and engine always agree on what a template gives.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 50_000  # loop turns and macro calls of one rendering
MAX_CHARACTERS = 8 << 20  # of one value, and of the whole rendering
MAX_WORK = 1 << 27  # characters that all operations of one rendering touch
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_INTEGER_BITS = 1024
# fmt: off
_TEXT_METHODS = frozenset((
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition", "startswith",
    "endswith", "removeprefix", "removesuffix", "replace", "join", "lower", "upper", "title", "capitalize",
    "casefold", "swapcase", "find", "rfind", "index", "rindex", "count", "isdigit", "isalpha", "isalnum",
    "isspace", "isupper", "islower", "isnumeric", "isdecimal", "istitle",
))
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
    "safe", "select", "selectattr", "sort", "string", "title", "tojson", "trim", "unique", "upper",
)
# fmt: on


class TemplateFailure(ValueError):
    """A template is malformed, passed a limit, or called `raise_exception`; the message is fit for a caller."""


class _Raised(TemplateError):
    """The template itself refused its input by `raise_exception`."""


class _Limit(TemplateError):
    """The template passed a limit of the sandbox."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; when serving it is transparent."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrument(NodeTransformer):
    """Adds a step to every loop turn and macro call and bounds `~`."""

    def _counted(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(lineno=node.lineno)
        step.node = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, step)
        return node

    visit_For = visit_Macro = visit_CallBlock = _counted

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("tilde"), list(node.nodes), [], None, None, lineno=node.lineno)


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 0


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment in which chat templates run. One rendering per thread at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._local = threading.local()
        own: dict[str, Callable[..., Any]] = {"tojson": _tojson, "replace": self._replace, "join": self._join}
        self.filters = {name: self._charged(own.get(name, self.filters[name])) for name in _FILTERS}
        self.globals = {
            "range": self.globals["range"],
            "namespace": self.globals["namespace"],
            "dict": self.globals["dict"],
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def start(self) -> None:
        """Begins the count of a rendering in this thread."""
        self._local.steps = 0
        self._local.work = 0

    def step(self) -> str:
        """Counts a loop turn or a macro call. Raises when the rendering has made too many."""
        self._local.steps += 1
        if self._local.steps > MAX_STEPS:
            raise _Limit(f"the template made more than {MAX_STEPS} steps")
        return ""

    def charge(self, size: int) -> None:
        """Counts a value of this size. Raises if it, or all values of the rendering together, are too large."""
        if size > MAX_CHARACTERS:
            raise _Limit(f"a value of the template would be longer than {MAX_CHARACTERS}")
        self._local.work += size
        if self._local.work > MAX_WORK:
            raise _Limit(f"the template worked on more than {MAX_WORK} characters")

    def concat(self, pieces: Iterable[str]) -> str:
        """What a block or a macro gave."""
        return self.tilde(*pieces)

    def tilde(self, *values: object) -> str:
        """The `~` operator."""
        parts = [str(value) for value in values]
        self.charge(sum(map(len, parts)))
        return "".join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        changed = _Instrument().visit(tree)
        if not isinstance(changed, nodes.Template):
            raise TypeError("instrumenting a template gave no template")
        return changed

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of strings, only methods that cannot make more than their arguments hold, and those bounded by `call`."""
        if isinstance(obj, str) and attr not in _TEXT_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No formatting by `str.format`: its widths are unbounded."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Bounds what `+`, `*`, `**` and `%` can make before it is made."""
        if operator == "+":
            self.charge(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            raise _Limit("the operator % on text is not allowed; use ~")
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Bounds what methods of strings make: `replace` and `join` can square one."""
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name == "replace" and len(args) > 1:
                __self._check_replace(owner, str(args[0]), str(args[1]))
            elif name == "join" and args:
                args = (__self._checked_parts(owner, args[0]),)
            else:
                __self.charge(len(owner))
        return super().call(__context, __obj, *args, **kwargs)

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, counting the size of the values it is given."""

        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self.charge(sum(map(_size, args)))
            return function(*args, **kwargs)

        return charged

    def _check_product(self, left: Any, right: Any) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and _size(value):
                self.charge(_size(value) * max(times, 0))
        bits = [value.bit_length() for value in (left, right) if isinstance(value, int)]
        if len(bits) == 2 and sum(bits) > MAX_INTEGER_BITS:
            raise _Limit("a number of the template is too large")

    def _check_replace(self, text: str, old: str, new: str) -> None:
        self.charge(len(text) + (text.count(old) if old else len(text) + 1) * len(new))

    def _checked_parts(self, separator: str, parts: Iterable[Any]) -> list[Any]:
        taken = list(itertools.islice(parts, MAX_STEPS + 1))
        if len(taken) > MAX_STEPS:
            raise _Limit(f"the template joined more than {MAX_STEPS} parts")
        self.charge(len(separator) * len(taken) + sum(len(part) for part in taken if isinstance(part, str)))
        return taken

    def _replace(self, value: object, old: str, new: str, count: int | None = None) -> str:
        text = str(value)
        self._check_replace(text, str(old), str(new))
        return text.replace(str(old), str(new), -1 if count is None else count)

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = value if attribute is None else (self.getitem(item, attribute) for item in value)
        return str(d).join(self._checked_parts(str(d), (str(item) for item in items)))


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INTEGER_BITS:
        raise _Limit("a number of the template is too large")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the `tojson` of chat templates writes it: nothing escaped for HTML, keys in their order."""
    if indent is not None and not 0 <= indent <= 16:
        raise _Limit("tojson: indent must be 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise _Raised(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:100])


class ChatTemplate:
    """A compiled chat template. Raises TemplateFailure if it does not parse."""

    def __init__(self, source: str):
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TemplateFailure(f"the chat template is longer than {MAX_TEMPLATE_CHARACTERS} characters")
        self._sandbox = Sandbox()
        try:
            self._template: Template = self._sandbox.from_string(source)
        except (TemplateError, SyntaxError, RecursionError) as error:
            raise TemplateFailure(f"the chat template does not parse: {error}") from error
        self._new_context: Callable[[dict[str, Any]], Any] = self._template.new_context

    def render(self, values: Mapping[str, Any]) -> str:
        """The prompt for these values (`messages`, `bos_token`, …). Raises TemplateFailure."""
        self._sandbox.start()
        pieces: list[str] = []
        length = 0  # characters
        try:
            for piece in self._template.root_render_func(self._new_context(dict(values))):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_CHARACTERS:
                    raise _Limit(f"the prompt would be longer than {MAX_CHARACTERS} characters")
        except _Raised as error:
            raise TemplateFailure(str(error)) from error
        except (TemplateError, RecursionError, MemoryError, OverflowError) as error:
            raise TemplateFailure(f"the chat template failed: {str(error)[:500]}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise TemplateFailure(f"the chat template failed: {type(error).__name__}: {str(error)[:500]}") from error
        return "".join(pieces)
