"""The HTTP service: a guard and inboxes for programs in any language (`postroom serve`).

* `settings`: the settings; `wire`: the bodies of the protocol; `openapi`: its description.
* `app`: the ASGI app; `gate`: what every request passes; `keys`, `messages`, `health`: the routes.
* `server`: runs the app, and stops it.
"""
