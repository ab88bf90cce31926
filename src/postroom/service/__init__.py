"""The HTTP service: a guard and inboxes for programs in any language (`postroom serve`)."""

from __future__ import annotations

from postroom.errors import ExtraMissing

try:
    import prometheus_client
    import starlette
    import uvicorn
except ImportError as error:
    raise ExtraMissing("the HTTP service needs Starlette and uvicorn: pip install 'postroom[service]'") from error

from postroom.service.app import Service, make_service
from postroom.service.server import run, serve
from postroom.service.settings import Settings

__all__ = ["Service", "Settings", "make_service", "run", "serve"]

del prometheus_client, starlette, uvicorn
