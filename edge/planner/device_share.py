"""How many devices should generate, and how many should retrieve (Chameleon; Jiang's thesis, section 4.6.3)."""

from __future__ import annotations

from dataclasses import dataclass

from edge.errors import RangeError


@dataclass(frozen=True, slots=True)
class Alternation:
    """Generation that waits for a retrieval every `interval` tokens.

    Attributes:
        batch: number of sequences generated at a time.
        step: seconds to write one token for the batch on one device.
        retrieval: seconds to retrieve for the batch on one device.
    """

    interval: int
    batch: int
    step: float
    retrieval: float

    def __post_init__(self) -> None:
        if min(self.interval, self.batch, self.step, self.retrieval) <= 0:
            raise RangeError("interval, batch and both times are above 0")

    def throughput(self, generating: int, retrieving: int) -> float:
        """Tokens per second. A generating device waits while it retrieves, and the slower side sets the rate."""
        tokens = self.interval * self.batch
        write = tokens * generating / (self.interval * self.step + self.retrieval)
        return min(write, tokens * retrieving / self.retrieval)

    @property
    def generating_share(self) -> float:
        """The best share of generating devices, between a half and one."""
        generation = self.interval * self.step
        return (generation + self.retrieval) / (generation + 2 * self.retrieval)

    def efficiency(self, share: float) -> float:
        """Throughput if this share of many devices generates, as a part of the highest throughput.

        Raises:
            RangeError: the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise RangeError(f"a share of devices is between 0 and 1, not {share}")
        generation = self.interval * self.step
        rate = min(share / (generation + self.retrieval), (1 - share) / self.retrieval)
        return rate * (generation + 2 * self.retrieval)

    def divided(self, devices: int) -> tuple[int, int]:
        """The best numbers of generating and of retrieving devices.

        Raises:
            RangeError: there are fewer than two devices.
        """
        if devices < 2:
            raise RangeError(f"two devices at least are needed to divide them, not {devices}")
        near = int(self.generating_share * devices)
        candidates = {min(max(1, count), devices - 1) for count in (near, near + 1)}
        best = max(sorted(candidates), key=lambda count: self.throughput(count, devices - count))
        return best, devices - best
