"""How long to leave a cluster alone after it has refused something: longer with each failure in a row."""

from __future__ import annotations

from elasticflow.process.retry import Backoff

NEVER_S = float("-inf")


class Cooldown:
    """Over when ``until_s`` has passed; what fails during it was under way and prolongs nothing."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._backoff = Backoff(first_s=first_s, most_s=most_s, patience_s=float("inf"))
        self.failures, self.until_s, self.text = 0, NEVER_S, ""

    def fail(self, text: str, now_s: float) -> None:
        self.text = text
        if now_s >= self.until_s:
            self.failures += 1
            self.until_s = now_s + (self._backoff.delay_s(0.0, self.failures) or 0.0)

    def end(self) -> None:
        """Something has changed: try now. Should that fail, the next takes longer."""
        self.until_s = NEVER_S

    def clear(self) -> None:
        """It went well."""
        self.failures, self.until_s, self.text = 0, NEVER_S, ""
