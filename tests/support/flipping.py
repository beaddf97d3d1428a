"""A proxy in front of an S3 server that flips one bit of what is read, and tells everything else as it is.

It is what a network card, a cache or a disk does: listing, HEAD and ETag stay right, and the bytes are wrong.
"""

from dataclasses import dataclass, replace

from support.lying_s3 import Answer, Asked, LyingServer


@dataclass
class Flips(LyingServer):
    """The proxy, and which of its answers are flipped.

    Attributes:
        names: texts, one of which the address of a flipped object holds. None flips nothing.
        left: how many answers are still to be flipped. None flips all.
        done: how many were.
    """

    names: tuple[str, ...] = ()
    left: int | None = None
    done: int = 0

    def answer(self, asked: Asked) -> Answer:
        """The true answer, with one bit of its middle changed when it is an answer's turn."""
        true = self._true(asked)
        if asked.method != "GET" or true.status not in {200, 206} or "?" in asked.path or not true.body:
            return true
        with self._lock:
            if self.left == 0 or not any(name in asked.path for name in self.names):
                return true
            self.left = None if self.left is None else self.left - 1
            self.done += 1
        middle = len(true.body) // 2
        return replace(true, body=true.body[:middle] + bytes([true.body[middle] ^ 1]) + true.body[middle + 1 :])
