"""A user's module, and the database that it works on."""

from __future__ import annotations

from pathlib import Path

from postroom import OwnerToken
from postroom.sync import Postroom

URL = "sqlite:///shop.db"

MODULE = """\
from postroom import Postroom

room = Postroom("sqlite:///shop.db")
orders = room.inbox("orders", order="fifo")
mail = room.outbox("mail")
empty = Postroom("memory://")
number = 7


class place:
    room = room


@orders.handler("order.placed")
async def placed(message):
    print("handled", message.message_id, flush=True)


@orders.handler("order.paid")
def paid(message):
    raise ValueError("this order is never paid")
"""


def write_module(folder: Path, text: str = MODULE, name: str = "shop") -> None:
    (folder / f"{name}.py").write_text(text, "utf-8")


def open_shop(folder: Path) -> Postroom:
    return Postroom(f"sqlite:///{folder / 'shop.db'}", deploy_schema=True)


SECRET = "4111-1111-1111-1111"
ESCAPE = "\x1b[31mred\x1b[0m"


def make_dead_letters(folder: Path) -> None:
    """Three in the inbox `orders`, one of them in a group; two in the outbox `outbox`."""
    with open_shop(folder) as room:
        owner = OwnerToken.new()
        orders = room.inbox("orders")
        for number, topic in enumerate(["order.placed", "order.paid"], 1):
            orders.enqueue(
                topic, {"card": SECRET}, source="web", message_id=str(number), headers={"trace": f"trace-{number}"}
            )
        orders.enqueue("order.placed", b"\x00\xff", source="phone", message_id="1", group="ann")
        orders.fail(owner, orders.claim(owner), f"no stock {ESCAPE}")
        orders.enqueue("order.placed", {}, source="web", message_id="3")
        outbox = room.outbox()
        for name in ("ann", "[bold]bob"):
            outbox.enqueue("mail.send", name, message_id=f"mail-{name}")
        outbox.fail(owner, outbox.claim(owner), "refused")
