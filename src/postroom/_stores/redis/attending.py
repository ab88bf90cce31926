"""When the next messages of boxes are due, and the soft lease of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from postroom._kernel.program import Program, call, verb
from postroom._stores.redis import codec
from postroom._stores.redis.layout import WITH_TIMES, attendant_key, box_key
from postroom._stores.redis.runner import ScriptRunner
from postroom._stores.redis.scripts import script
from postroom.spi import Attendance


class AttendVerbs(ScriptRunner):
    """The verb `attend`, for both modes."""

    @verb
    def attend(self, boxes: Sequence[str], process: UUID, lease: timedelta) -> Program[Attendance]:
        if not self._client.is_ready:
            yield call(self._client.ready)
        lease_key = attendant_key(self._prefix).encode()
        sets = [[box_key(self._prefix, box, name).encode() for name in WITH_TIMES] for box in boxes]
        arguments = {"process": process.hex, "lease": codec.microseconds(lease), "sets": len(WITH_TIMES)}
        if self._client.is_cluster:  # the lease and each box may be on different nodes
            runs = [([lease_key], arguments), *((keys, {"sets": len(WITH_TIMES)}) for keys in sets)]
        else:
            runs = [([lease_key, *(key for keys in sets for key in keys)], arguments)]
        now, no_policy = self._now(), codec.encode(None)
        replies = yield call(
            self._client.run_all,
            script("attend"),
            [(keys, (now, no_policy, codec.encode(given))) for keys, given in runs],
        )
        free_in, *times = (None if time is None else time / 1e6 for reply in replies for time in reply)
        due = {box: time for box, time in zip(boxes, times, strict=True) if time is not None}
        return Attendance(due, free_in)
