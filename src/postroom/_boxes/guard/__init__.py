"""The guard: runs a handler of another system once for each key, however often its message is delivered.

* `key`: keys that are composed of parts.
* `options`: the arguments of `room.guard()`, and the policy that they make.
* `verbs`: the verbs, for both modes.
* `guard`: the classes for async and sync code.
"""
