"""The OpenAPI document of the service: the schemas come from the bodies in `wire`."""

from __future__ import annotations

from typing import Any

import msgspec

from postroom._stores.http import wire as shared
from postroom.service import wire
from postroom.service.guards import PATH, ROUTES

Schema = dict[str, Any]
_PROBLEMS = {
    "400": "The request is not as described.",
    "401": "The token is missing or unknown.",
    "404": "There is no such path.",
    "405": "The path has another method.",
    "408": "The body did not arrive in time.",
    "411": "The body has no length.",
    "413": "The body is too long.",
    "415": "The body is not JSON.",
    "503": "The store does not respond, or too many requests are in progress.",
}
_POSTS: list[tuple[str, str, Any, type, str]] = [
    ("/v1/inbox/try-begin", "tryBegin", wire.TryBegin, wire.Begun, "Begin the handling of a key under a lease."),
    ("/v1/inbox/mark-processed", "markProcessed", wire.MarkProcessed, wire.Settled, "Record a key as processed."),
    ("/v1/inbox/release", "release", wire.Release, wire.Settled, "Give a lease back."),
    ("/v1/inbox/renew", "renew", wire.Renew, wire.Settled, "Move the end of a lease."),
    ("/v1/inbox/fail", "fail", wire.Fail, wire.Settled, "Record that a key has failed for good."),
    (
        "/v1/inboxes/{box}/messages",
        "storeMessages",
        shared.AnyMessages,
        shared.Receipts,
        "Store one message or several in an inbox.",
    ),
    *((f"{PATH}{each.name}", f"{each.name}Guard", each.body, each.reply, each.summary) for each in ROUTES),
]
_KEY = {"type": "string", "minLength": 1, "maxLength": wire.LONGEST_KEY}


def describe(version: str) -> Schema:
    """Returns the document."""
    kinds = [kind for post in _POSTS for kind in post[2:4]] + [wire.Report, shared.Info, wire.Problem]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    posts = iter(schemas)
    paths: Schema = {
        path: {"post": _operation(name, summary, next(posts), next(posts), _names(path))}
        for path, name, _, _, summary in _POSTS
    }
    report, info, problem = posts
    in_path = {"name": "key", "in": "path", "required": True, "schema": _KEY}
    in_query = {"name": "key", "in": "query", "required": True, "schema": _KEY}
    paths["/v1/inbox/{key}"] = {"get": _operation("reportByPath", "Report on a key.", None, report, [in_path])}
    paths["/v1/inbox"] = {"get": _operation("report", "Report on a key.", None, report, [in_query])}
    paths["/v1"] = {"get": {**_operation("info", "What the service is.", None, info, []), "security": []}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Postroom", "version": version},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {status: _problem(text, problem) for status, text in _PROBLEMS.items()},
        },
    }


def _operation(name: str, summary: str, body: Schema | None, reply: Schema, parameters: list[Schema]) -> Schema:
    responses: Schema = {"200": {"description": "The outcome.", "content": _json(reply)}}
    responses |= {status: {"$ref": f"#/components/responses/{status}"} for status in _PROBLEMS}
    operation: Schema = {"operationId": name, "summary": summary, "parameters": parameters, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _names(path: str) -> list[Schema]:
    """Returns the parameters of a path: the name of an inbox or of a guard."""
    schema = {"type": "string", "minLength": 1, "maxLength": 100}
    names = [name for name in ("box", "guard") if f"{{{name}}}" in path]
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _problem(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": {"application/problem+json": {"schema": schema}}}
