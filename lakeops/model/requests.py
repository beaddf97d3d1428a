"""What a call under an idempotency key asked for: whether another call under the key asks for the same.

A key stands for one piece of work. A call that is repeated after a crash asks for the same and gets the first call's
commit. A call that asks for something else must not get it, or its work would be taken for done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakeops.model.errors import (
    InvalidInput,
)
from lakeops.model.text import excerpt, flaw

MAX_KEY_BYTES = 256

OF_THE_ATTEMPT = frozenset({"airflow_try_number", "airflow_link"})
"""Metadata that tells which attempt made a commit. It differs when the same work is tried again."""


def check_key(key: str) -> str:
    """An idempotency key, when it is 1 to 256 bytes of printable text. Raises ``InvalidInput``."""
    reason = flaw(key, at_least=1, at_most=MAX_KEY_BYTES)
    if reason is None and not key.isprintable():
        reason = "has a character that cannot be printed"
    if reason is not None:
        raise InvalidInput(f"{excerpt(key)} is not an idempotency key: it {reason}")
    return key


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """What a call asks for.

    Attributes:
        action: the verb.
        branch: the branch, or another ref that it makes.
        parts: what else the verb takes, by name.
        message: the commit's message as it was given. None when it was left to the verb.
        metadata: the commit's metadata as it was given.
    """

    action: str
    branch: str
    parts: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """The request as text of bounded size, to be kept with the key. Equal for equal requests only."""
        given = {name: value for name, value in self.metadata.items() if name not in OF_THE_ATTEMPT}
        long = {"message": self.message, "metadata": dict(sorted(given.items()))}
        values = {"verb": self.action, "ref": self.branch, **self.parts}
        return json.dumps({**values, **{name: _digest(value) for name, value in long.items()}}, sort_keys=True)


def difference(known: str, asked: str) -> list[str]:
    """What differs between two fingerprints, by name: ``message``, ``source``. Empty when nothing does."""
    if known == asked:
        return []
    one, other = _fields(known), _fields(asked)
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name)) or ["request"]


def _fields(fingerprint: str) -> dict[str, object]:
    try:
        found = json.loads(fingerprint)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


MAX_ASKED_BYTES = 1024
MAX_AMOUNT = (1 << 63) - 1
"""What a database can count to."""


def check_asked(text: str, what: str) -> str:
    """A name or a part of one that the catalog can be asked for. It may be empty.

    Raises ``InvalidInput`` (``invalid_name``).
    """
    reason = flaw(text, at_most=MAX_ASKED_BYTES)
    if reason is not None:
        raise InvalidInput(f"{excerpt(text)} cannot be {what}: it {reason}", kind="invalid_name")
    return text


def check_amount(amount: int, what: str) -> int:
    """How many of something a caller wants: 0 or more. Raises ``InvalidInput``."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidInput(f"{what} is {excerpt(amount)}; give a whole number")
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"{what} is {'below 0' if amount < 0 else 'too large'}; give 0 or more")
    return amount
