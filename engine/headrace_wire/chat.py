"""Chat messages and text to token ids, the same in gateway and engine, addressed by the bundle's digest. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from headrace_wire.bounds import least_tokens
from headrace_wire.detokenizer import DecoderUnsupported, Detokenizer, TokenBytes, Vocabulary
from headrace_wire.protocol import TokenizerBundle
from headrace_wire.reasons import Reason, RequestError
from headrace_wire.template import ChatTemplate, TemplateFailure

__all__ = ["ChatTokenizer", "Detokenizer", "Rendering", "TokenizerInvalid", "make_bundle", "read_bundle"]

OWN_VALUES = frozenset(("messages", "add_generation_prompt", "bos_token", "eos_token", "tools", "documents"))


@dataclass(frozen=True)
class Rendering:
    """How messages become a prompt."""

    generation_prompt: bool = True  # the prompt ends where the assistant begins
    continue_final: bool = False  # the prompt ends inside the last message, which the output goes on with
    values: Mapping[str, Any] = field(default_factory=dict)  # for the template; none of OWN_VALUES


NEW_ANSWER = Rendering()


class TokenizerInvalid(ValueError):
    """A model's tokenizer or template cannot be used; `file` names the file at fault."""

    def __init__(self, file: str, message: str):
        super().__init__(f"{file}: {message}")
        self.file = file
        self.message = message


def make_bundle(
    tokenizer_json: str,
    chat_template: str | None,
    *,
    bos_token: str | None = None,
    eos_token: str | None = None,
    eos_ids: tuple[int, ...] = (),
) -> TokenizerBundle:
    """A bundle with its digest: SHA-256 over the fields, each framed by its length."""
    h = hashlib.sha256(b"headrace.tokenizer.v1")
    for part in (tokenizer_json, chat_template, bos_token, eos_token, json.dumps(eos_ids)):
        data = b"\0" if part is None else b"\1" + part.encode()
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return TokenizerBundle(
        digest=h.hexdigest(),
        tokenizer_json=tokenizer_json,
        chat_template=chat_template,
        bos_token=bos_token,
        eos_token=eos_token,
        eos_ids=eos_ids,
    )


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder; empty if there is no such file. Raises TokenizerInvalid."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is in no text
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerInvalid(name, f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerInvalid(name, "is not a JSON object")
    return value


def _token(config: Mapping[str, Any], field: str) -> str | None:
    """A special token, written as a string or as an object with `content`."""
    value = config.get(field)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise TokenizerInvalid(path.name, f"cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        entries = [item for item in template if isinstance(item, dict)]
        template = next((item.get("template") for item in entries if item.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise TokenizerInvalid("tokenizer_config.json", f"chat_template must be a text, got {template!r:.100}")
    return template


def _eos_ids(folder: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder, name).get("eos_token_id")
        for item in [] if value is None else value if isinstance(value, list) else [value]:
            if not isinstance(item, int) or isinstance(item, bool):
                raise TokenizerInvalid(name, "eos_token_id must be a token id or a list of them")
            if item not in ids:
                ids.append(item)
    return ids


def read_bundle(folder: Path) -> TokenizerBundle:
    """The bundle of a model folder. Raises TokenizerInvalid naming the file."""
    path = folder / "tokenizer.json"
    try:
        tokenizer_json = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerInvalid(path.name, f"cannot be read: {error}") from error
    config = {**_read_object(folder, "special_tokens_map.json"), **_read_object(folder, "tokenizer_config.json")}
    eos_token = _token(config, "eos_token")
    eos_ids = _eos_ids(folder)
    return make_bundle(
        tokenizer_json,
        _template(folder, config),
        bos_token=_token(config, "bos_token"),
        eos_token=eos_token,
        eos_ids=tuple(eos_ids),
    )


class ChatTokenizer:
    """Counts and encodes prompts. Safe to use from several threads; encoding releases the GIL.

    Raises TokenizerInvalid when the tokenizer, its decoder or the template cannot be used.
    """

    def __init__(self, bundle: TokenizerBundle):
        self.bundle = bundle
        try:
            self._tokenizer: Any = Tokenizer.from_str(bundle.tokenizer_json)
        except Exception as error:  # the binding raises plain Exception
            raise TokenizerInvalid("tokenizer.json", f"cannot be used: {str(error)[:300]}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = [index for index, token in self._tokenizer.get_added_tokens_decoder().items() if token.special]
        document = json.loads(bundle.tokenizer_json)
        try:
            token_bytes = TokenBytes(document.get("decoder"))
        except DecoderUnsupported as error:
            raise TokenizerInvalid("tokenizer.json", str(error).removeprefix("tokenizer.json: ")) from error
        self._vocabulary = Vocabulary(token_bytes, self._tokenizer.id_to_token, special)
        self._with_special = Vocabulary(token_bytes, self._tokenizer.id_to_token, ())
        self._least = least_tokens(document, self._normalize)
        try:
            self._template = None if bundle.chat_template is None else ChatTemplate(bundle.chat_template)
        except TemplateFailure as error:
            raise TokenizerInvalid("chat template", str(error)) from error
        named = None if bundle.eos_token is None else self._tokenizer.token_to_id(bundle.eos_token)
        self.eos_ids = bundle.eos_ids if named is None or named in bundle.eos_ids else (*bundle.eos_ids, named)

    @classmethod
    def from_folder(cls, path: str | Path) -> ChatTokenizer:
        """From a model folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`, the eos ids."""
        return cls(read_bundle(Path(path)))

    @classmethod
    def from_bundle(cls, bundle: TokenizerBundle) -> ChatTokenizer:
        """From what `GET /headrace/v1/tokenizer` gave."""
        return cls(bundle)

    @property
    def digest(self) -> str:
        """Addresses the bundle: equal digests count and encode alike."""
        return self.bundle.digest

    @property
    def size(self) -> int:
        """Number of token ids, added tokens included; a model's vocabulary may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def render_chat(self, messages: Sequence[Mapping[str, Any]], rendering: Rendering = NEW_ANSWER) -> str:
        """The prompt text of these messages. Raises RequestError."""
        if self._template is None:
            raise RequestError(
                Reason.INVALID_REQUEST, "this model has no chat template: use /v1/completions", param="messages"
            )
        plain = [_plain(message) for message in messages]
        values = {
            **rendering.values,
            "messages": plain,
            "add_generation_prompt": rendering.generation_prompt and not rendering.continue_final,
            "bos_token": self.bundle.bos_token or "",
            "eos_token": self.bundle.eos_token or "",
            "tools": None,
            "documents": None,
        }
        try:
            text = self._template.render(values)
        except TemplateFailure as error:
            raise RequestError(Reason.INVALID_REQUEST, f"messages: {error}", param="messages") from error
        return _up_to_last(text, str(plain[-1]["content"])) if rendering.continue_final else text

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], rendering: Rendering = NEW_ANSWER, *, room: int | None = None
    ) -> list[int]:
        """Token ids of the templated messages. Raises RequestError with param `messages`.

        A prompt that cannot fit into `room` tokens beside one of output, as its bytes tell, is refused uncounted.
        """
        text = self.render_chat(messages, rendering)
        self.check_bytes(text, room, "messages")
        return self._encode(text, special=False, param="messages")

    def encode_text(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a plain prompt, `special`: with the tokens that the tokenizer adds. Raises RequestError."""
        return self._encode(text, special=special, param="prompt")

    def check_bytes(self, text: str, room: int | None, param: str) -> None:
        """Raises RequestError for a text that has so many bytes that it cannot fit beside one token of output."""
        if room is None or self._least is None:
            return
        size = len(_utf8(text, param))
        least = self._least(text, size)
        if least + 1 > room:
            message = (
                f"{param}: the prompt has {size} bytes, which are at least {least} tokens, and the answer needs one "
                f"more, but only {room} tokens fit"
            )
            raise RequestError(Reason.CONTEXT_EXCEEDED, message, param=param)

    def detokenizer(self, *, start: bool = True, special: bool = False) -> Detokenizer:
        """Text of generated tokens, piece by piece; `special`: with the names of special tokens."""
        return Detokenizer(self._with_special if special else self._vocabulary, start=start)

    def name(self, token: int) -> str:
        """A token as the vocabulary writes it."""
        return self._tokenizer.id_to_token(token) or ""

    def token_bytes(self, token: int) -> bytes:
        """One token on its own: its bytes, the name of a special one, nothing for an id beyond the vocabulary."""
        return self._vocabulary.bytes_of(token) or (self._tokenizer.id_to_token(token) or "").encode()

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of these tokens; `special`: with the names of special tokens."""
        detokenizer = self.detokenizer(special=special)
        return detokenizer.feed(tokens) + detokenizer.finish()

    def _encode(self, text: str, *, special: bool, param: str) -> list[int]:
        _utf8(text, param)
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids

    def _normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


def _utf8(text: str, param: str) -> bytes:
    """Raises RequestError for half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(Reason.INVALID_REQUEST, f"{param}: is not valid Unicode", param=param) from error


def _up_to_last(text: str, last: str) -> str:
    """The prompt up to the end of its last message's text. Raises RequestError where a template does not show it."""
    shown = last.strip()
    at = text.rfind(shown) if shown else -1
    if at < 0:
        message = "messages: the last message has no text in the prompt that the answer could continue"
        raise RequestError(Reason.INVALID_REQUEST, message, param="messages")
    whole = last.lstrip()
    return text[: at + len(whole)] if text.startswith(whole, at) else text[: at + len(shown)]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined. Raises RequestError for other parts."""
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = "".join(map(_part_text, content))
    elif content is None:
        content = ""
    if not isinstance(content, str):
        raise RequestError(Reason.INVALID_REQUEST, "messages: content must be text or text parts", param="messages")
    return {**message, "content": content}


def _part_text(part: object) -> str:
    if isinstance(part, msgspec.Struct):
        part = msgspec.structs.asdict(part)
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(Reason.INVALID_REQUEST, "messages: only text parts are supported", param="messages")
