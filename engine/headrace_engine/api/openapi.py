"""The OpenAPI document of the engine's routes: fields from the structs that read them, bounds from their constants."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from headrace_engine.api import schema
from headrace_engine.api.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from headrace_engine.version import version
from headrace_wire.chat import OWN_VALUES
from headrace_wire.protocol import EngineState, TokenizerBundle

Json = dict[str, Any]
_REFS = "#/components/schemas/{name}"
_TEXT: Json = {"type": "string", "minLength": 1, "maxLength": schema.MAX_STOP_CHARACTERS}
_IDS: Json = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_STRING: Json = {"type": "string", "minLength": 1}
_SEVERAL: Json = {"type": "array", "minItems": 1, "maxItems": schema.MAX_TOTAL_CHOICES}
_PROMPT: Json = {"anyOf": [_STRING, _IDS, {**_SEVERAL, "items": _STRING}, {**_SEVERAL, "items": _IDS}]}
_MESSAGE_RULE: Json = {  # only an assistant may have said nothing
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"content": {"type": ["string", "array"]}}},
    ]
}
_LIST: Json = {"type": "array", "minItems": 1}
_TARGET: Json = {"type": "number", "minimum": 0, "maximum": 1e12}


def _number(low: float, high: float) -> Json:
    return {"type": "number", "minimum": low, "maximum": high}


def _integer(low: int, high: int | None = None) -> Json:
    return {"type": "integer", "minimum": low} if high is None else {"type": "integer", "minimum": low, "maximum": high}


def _neutral(values: tuple[Any, ...]) -> Json:
    return {"enum": [*values, None], "description": "Taken with these values, which ask for nothing."}


def _bounds() -> dict[str, Json]:
    """What is checked beside the types, of fields of both bodies; null is taken too."""
    return {
        "max_tokens": _integer(1),
        "max_completion_tokens": _integer(1),
        "temperature": _number(0, 2),
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": _integer(-1),
        "min_p": _number(0, 1),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": schema.MAX_REPETITION},
        "logit_bias": {
            "type": "object",
            "maxProperties": schema.MAX_BIASES,
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": _number(-schema.MAX_BIAS, schema.MAX_BIAS),
        },
        "seed": _integer(-(1 << 63), (1 << 64) - 1),
        "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": schema.MAX_STOPS}]},
        "stop_token_ids": {"type": "array", "items": {"type": "integer"}, "maxItems": schema.MAX_STOP_IDS},
        "min_tokens": _integer(0),
        "n": _integer(1, schema.MAX_CHOICES),
        "top_logprobs": _integer(0, schema.MAX_TOP),
        "cache_salt": {"type": "string", "minLength": 1, "maxLength": schema.MAX_STOP_CHARACTERS},
        "chat_template_kwargs": {"type": "object", "propertyNames": {"not": {"enum": sorted(OWN_VALUES)}}},
    }


def _hints() -> dict[str, Json]:
    text: Json = {"type": "string", "maxLength": schema.MAX_ID_CHARACTERS}
    return {
        "id": text,
        "holder": text,
        "priority": _integer(-(1 << 31), (1 << 31) - 1),
        "salt": {"type": "string", "pattern": f"^([0-9a-fA-F]{{2}}){{0,{schema.MAX_ID_CHARACTERS}}}$"},
    }


def _nullable(one: Json) -> Json:
    return {"anyOf": [one, {"type": "null"}]}


def _schemas() -> Json:
    structs = [ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, EngineState, TokenizerBundle]
    found: Json = msgspec.json.schema_components(structs, ref_template=_REFS)[1]
    for name in ("ChatBody", "CompletionBody", "TokenizeBody"):
        fields = found[name]["properties"]
        fields.update({field: _nullable(bound) for field, bound in _bounds().items() if field in fields})
        fields.update({f: _neutral(values) for f, values in schema.NEUTRAL.items() if f in fields})
    found["ChatBody"]["properties"]["messages"]["minItems"] = 1
    completion = found["CompletionBody"]["properties"]
    completion["prompt"] = _PROMPT
    completion["max_tokens"] = _nullable(_integer(0))  # 0 with echo
    completion["best_of"] = {**_nullable(_integer(1, schema.MAX_CHOICES)), "description": "1, or the value of n"}
    completion["logprobs"] = {"anyOf": [_integer(0, schema.MAX_TOP), {"const": False}, {"type": "null"}]}
    message = found["Message"]["properties"]
    message.update({field: _neutral(values) for field, values in schema.MESSAGE_NEUTRAL.items()})
    found["Message"].update(_MESSAGE_RULE)
    found["TokenizeBody"]["anyOf"] = [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
        {"required": ["messages"], "properties": {"prompt": {"type": "null"}, "messages": _LIST}},
    ]
    hints = found["RequestHints"]["properties"]
    hints.update(_hints())
    hints.update({field: _nullable(_TARGET) for field in ("ttft_ms", "tpot_ms", "left_ms")})
    found["Error"] = _error()
    return found


def _error() -> Json:
    nullable: Json = {"type": ["string", "null"]}
    fields: Json = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable}
    inner: Json = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {"error": inner}, "required": ["error"]}


def _answers(content: Json, *refusals: int) -> Json:
    error = {"application/json": {"schema": {"$ref": _REFS.format(name="Error")}}}
    refused = {str(status): {"description": "An error", "content": error} for status in refusals}
    return {"200": {"description": "The answer", "content": content}, **refused}


def _json_of(name: str | None = None) -> Json:
    return {"application/json": {"schema": {"$ref": _REFS.format(name=name)} if name else {"type": "object"}}}


def _post(body: str, summary: str, content: Json, *refusals: int) -> Json:
    refused = (400, 404, 408, 413, 415, 500, *refusals)
    asked = {"required": True, "content": _json_of(body)}
    return {"post": {"summary": summary, "requestBody": asked, "responses": _answers(content, *refused)}}


def _generation(body: str, summary: str) -> Json:
    event: Json = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    stream: Json = {"text/event-stream": {"schema": {**event, "description": "Each event of the stream"}}}
    return _post(body, summary, {**_json_of(), **stream}, 499, 502, 503)


def _get(summary: str, content: Json, *refusals: int) -> Json:
    return {"get": {"summary": summary, "responses": _answers(content, *refusals)}}


@cache
def document() -> bytes:
    """The document as JSON, OpenAPI 3.1."""
    name: Json = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    text: Json = {"text/plain": {"schema": {"type": "string"}}}
    paths: Json = {
        "/v1/chat/completions": _generation("ChatBody", "Answer a chat"),
        "/v1/completions": _generation("CompletionBody", "Continue a prompt"),
        "/tokenize": _post("TokenizeBody", "Count and show the tokens of a prompt", _json_of()),
        "/detokenize": _post("DetokenizeBody", "The text of tokens", _json_of()),
        "/v1/models": _get("The one model", _json_of()),
        "/v1/models/{name}": {**_get("The model by name", _json_of(), 404), "parameters": [name]},
        "/version": _get("The engine's version", _json_of()),
        "/health": _get("Liveness", _json_of(), 503),
        "/ready": _get("Readiness", _json_of(), 503),
        "/metrics": _get("Prometheus text", text),
        "/openapi.json": _get("This document", _json_of()),
        "/headrace/v1/state": _get("The engine's state", _json_of("EngineState"), 502, 503),
        "/headrace/v1/info": _get("What stays the same", _json_of(), 503),
        "/headrace/v1/tokenizer": _get("Tokenizer and chat template", _json_of("TokenizerBundle")),
        "/headrace/v1/cache/reset": {
            "post": {"summary": "Begin a new epoch of the prefix cache", "responses": _answers(_json_of(), 502, 503)}
        },
    }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Headrace engine", "version": version()},
            "paths": paths,
            "components": {"schemas": _schemas()},
        }
    )
