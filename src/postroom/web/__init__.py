"""`Idempotency-Key` for web applications: a request that is sent again is handled once, and gets the same response.

* `IdempotencyMiddleware`: for any ASGI app, on any store.
* `idempotent`: for a route of Starlette or FastAPI, whose writes, stored response and completion are one commit.
"""

from postroom.web.keys import ANONYMOUS, record_key
from postroom.web.middleware import IdempotencyMiddleware
from postroom.web.route import idempotent

__all__ = ["ANONYMOUS", "IdempotencyMiddleware", "idempotent", "record_key"]
