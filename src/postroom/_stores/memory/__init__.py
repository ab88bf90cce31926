"""The memory store: the executable specification.

Every rule of the work queue is here in its plainest form that is still fast enough to use. The conformance suites and
random histories compare the other stores with this one.

* `store`: the verbs; each holds one lock from start to end.
* `entry`: a message with its progress. `box_state`: the messages of one box, and the indexes on them.
* `arrivals`, `begins`, `claims`, `settlements`: what the verbs of these names do.
* `transitions`: the changes of state that several verbs share.
"""

from postroom._stores.memory.store import MemoryStore, SyncMemoryStore

__all__ = ["MemoryStore", "SyncMemoryStore"]
