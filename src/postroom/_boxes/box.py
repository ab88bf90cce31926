"""All verbs that inbox and outbox share, one module for each group of them."""

from __future__ import annotations

from postroom._boxes.cancel import CancelVerbs
from postroom._boxes.cleaning import CleaningVerbs
from postroom._boxes.dead_letters import DeadLetterVerbs
from postroom._boxes.enqueue import EnqueueVerbs
from postroom._boxes.lookup import LookupVerbs
from postroom._boxes.work_queue import WorkQueueVerbs


class BoxVerbs(EnqueueVerbs, WorkQueueVerbs, LookupVerbs, CancelVerbs, DeadLetterVerbs, CleaningVerbs):
    """The verbs of every box, in both modes. Verbs that write take `tx=`, your open transaction."""
