"""What is needed for what: receiving needs no package, sending and ed25519 need the extra `webhooks`."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
for name in ("httpcore2", "cryptography", "starlette", "fastapi"):
    sys.modules[name] = None  # an import raises ImportError

import postroom
from postroom import webhooks
from postroom.webhooks import Receiver, StandardWebhooks, Stripe

secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
Receiver(postroom.Postroom("memory://").inbox(), StandardWebhooks(secret))
for make in (lambda: StandardWebhooks("whpk_" + "A" * 43 + "="), lambda: webhooks.Sender):
    try:
        make()
    except postroom.ExtraMissing as error:
        print(error)
"""


def test_a_missing_package_is_named_with_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "ed25519 needs cryptography: pip install 'postroom[webhooks]'",
        "sending webhooks needs httpcore2: pip install 'postroom[webhooks]'",
    ]
