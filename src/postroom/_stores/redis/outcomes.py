"""Converts settlements to arguments of scripts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from uuid import UUID

from postroom._stores.redis.codec import Arguments, decode, encode, id_texts, microseconds, target_arguments
from postroom.spi import Claim, Result, Settlement

_result_of = attrgetter("result")


class Outcomes:
    """Settlements as a script takes them: successes of claims together by owner and fence, all others one by one."""

    def __init__(
        self, settlements: Sequence[Settlement], delays: Sequence[timedelta | None] = (), *, ordered: bool = False
    ) -> None:
        """`delays` replaces the delays of the settlements.

        `ordered` adds the positions of successes: the script may turn a success into a release, and then the order
        among the others counts.
        """
        self._count = len(settlements)
        self.contents = b""
        """The results, packed one after the other."""
        self._acks: list[int] = []
        self._others: list[int] = []
        others: list[Arguments] = []
        ids_by_proof: dict[tuple[UUID, int], list[int]] = {}
        positions_by_proof: dict[tuple[UUID, int], list[int]] = {}
        # A success with a result is one of the others, and so are then all: of two of one claim, the first counts.
        has_results = any(map(_result_of, settlements))
        # Consecutive successes mostly have the same owner and fence: their lists are looked up once.
        owner, fence = None, 0
        ids: list[int] = []
        positions: list[int] = []
        for position, settlement in enumerate(settlements):
            target, verdict, delay, _, _, result = settlement
            if verdict == "done" and not has_results and type(target) is Claim:
                id_, its_owner, its_fence, _ = target
                if its_owner is not owner or its_fence != fence:
                    owner, fence = its_owner, its_fence
                    ids = ids_by_proof.setdefault((owner, fence), [])
                    positions = positions_by_proof.setdefault((owner, fence), [])
                ids.append(id_)
                positions.append(position)
            else:
                other = _other(settlement, delays[position] if delays else delay, position)
                others.append(other if result is None else other | self._add_result(result))
                self._others.append(position)
        acks: list[Arguments] = []
        for proof, ids in ids_by_proof.items():
            ack: Arguments = {"owner": proof[0].hex, "fence": proof[1], "ids": id_texts(ids)}
            acks.append(ack | {"orders": positions_by_proof[proof]} if ordered else ack)
            self._acks += positions_by_proof[proof]
        self.arguments: Arguments = {"acks": acks, "others": others}

    def _add_result(self, result: Result) -> Arguments:
        # Packed here and passed apart, because a script does not see whether a string is text or bytes.
        packed = encode(result.payload)
        place = {"format": result.format, "first": len(self.contents) + 1, "last": len(self.contents) + len(packed)}
        self.contents += packed
        return {"result": place}

    def kept(self, lost: bytes) -> list[bool]:
        """Returns one value per settlement, False for those at the lost positions, which a script counts from 1."""
        kept = [True] * self._count
        if lost:
            for positions, its_lost in zip((self._acks, self._others), decode(lost), strict=True):
                for position in its_lost:
                    kept[positions[position - 1]] = False
        return kept


def _other(settlement: Settlement, delay: timedelta | None, order: int) -> Arguments:
    arguments = target_arguments(settlement.target) | {"verdict": settlement.verdict, "order": order}
    if delay is not None:
        arguments["delay"] = microseconds(delay)
    if settlement.error is not None:
        arguments["error"] = settlement.error
    if settlement.counts:
        arguments["counts"] = True
    return arguments
