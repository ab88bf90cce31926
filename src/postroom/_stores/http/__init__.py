"""The client of the HTTP service (`postroom serve`), as a store: guards, and inboxes that accept messages.

* `url`: from a URL to a store; `token`: the bearer token.
* `wire`: the bodies of the protocol, which the service uses as well; `codec`: from values to bodies and back.
* `transport`: requests, repetitions and errors; `store`: the verbs.
"""
