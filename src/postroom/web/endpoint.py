"""The endpoint of a decorated route: what a framework sees of it, and how it is called with a transaction."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from postroom._boxes.handler_annotations import resolve
from postroom._boxes.handler_session import with_session
from postroom._boxes.transaction_annotations import session_class
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError
from postroom.spi import Tx

Function = Callable[..., Awaitable[Any]]
REQUEST, RESPONSE = "postroom_request", "postroom_response"
"""Parameters that are added for FastAPI, which passes what their annotations name."""


class Endpoint:
    """A function with a parameter `tx`, which the framework does not see."""

    def __init__(self, function: Function, store: RoomStore) -> None:
        name = getattr(function, "__qualname__", type(function).__name__)
        if not inspect.iscoroutinefunction(function):
            raise ArgumentTypeError(f"{name} must be an async function: its transaction is awaited")
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        position = next((index for index, each in enumerate(parameters) if each.name == "tx"), None)
        if position is None or parameters[position].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ArgumentTypeError(f"{name} must take tx, the transaction to write in: async def {name}(request, tx)")
        self._function = function
        self._session = session_class(function, store.tx_classes, position)
        del parameters[position]
        annotated = [_with_request(each) for each in parameters]
        self._request = _name_of(function, annotated, Request)
        self._response = _name_of(function, annotated, Response)
        self.signature = signature.replace(parameters=self._with_hidden(annotated))

    def _with_hidden(self, parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
        rest = [each for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD]
        hidden = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            for name, found, kind in ((REQUEST, self._request, Request), (RESPONSE, self._response, Response))
            if found is None
        ]
        return [*(each for each in parameters if each not in rest), *hidden, *rest]

    def request_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        """Returns the request of a call."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, Request):
                return value
        raise ArgumentTypeError("the endpoint was called without its request: is it a route of Starlette or FastAPI?")

    def injected_response(self, kwargs: dict[str, Any]) -> Response | None:
        """Returns the response on which FastAPI collects the headers and the status that dependencies set."""
        found = kwargs.get(self._response or RESPONSE)
        return found if isinstance(found, Response) else None

    async def call(self, tx: Tx, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function with the transaction, or with a session on it, as its annotation says."""
        given = {name: value for name, value in kwargs.items() if name not in {REQUEST, RESPONSE}}

        async def call(_: object, tx: Tx) -> Any:
            return await self._function(*args, **given, tx=tx)

        handle: Any = call if self._session is None else with_session(call, self._session)
        return await handle(None, tx)


def _with_request(parameter: inspect.Parameter) -> inspect.Parameter:
    """Annotates `request`: for FastAPI, a parameter without annotation is one of the query."""
    if parameter.name == "request" and parameter.annotation is inspect.Parameter.empty:
        return parameter.replace(annotation=Request)
    return parameter


def _name_of(function: Function, parameters: list[inspect.Parameter], kind: type) -> str | None:
    for each in parameters:
        hint = resolve(function, each.annotation)
        if isinstance(hint, type) and issubclass(hint, kind):
            return each.name
    return None
