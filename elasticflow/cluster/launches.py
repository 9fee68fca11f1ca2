"""Whether anything can be started at all: a cluster may give place after place in which nothing can."""

from __future__ import annotations

from elasticflow.cluster.cooldown import NEVER_S, Cooldown

LASTS_S = 10.0
"""What runs for so long was started well."""
COOLDOWN_S = (5.0, 300.0)
"""Pauses after a place in which nothing could be started: the first, and the longest."""


class Launches:
    """Counts places in which nothing could be started, until one goes well, once and for all.

    most: so many are enough to give up; 0: never. ``cooldown``: until the next may be asked for.
    """

    def __init__(self, most: int) -> None:
        self.cooldown = Cooldown(*COOLDOWN_S)
        self.in_doubt = False
        """Whether nothing has gone well since the last failure: then one is enough to try."""
        self._most = most
        self._went_well = False
        self._failed_s = NEVER_S
        """Whoever began since then, and lasts, shows that all is well."""
        self._num_failed = 0
        self._nodes: dict[str, None] = {}
        self._text = ""

    def see(self, since_s: float, now_s: float) -> None:
        """Something has been running since then."""
        if since_s <= now_s - LASTS_S:
            self._went_well = True
            if since_s > self._failed_s:
                self.in_doubt = False
                self.cooldown.clear()

    def is_open(self, since_s: float, now_s: float) -> bool:
        """Whether what runs since then is going to show how things are after the last failure."""
        return self._failed_s < since_s > now_s - LASTS_S

    def later(self, text: str, now_s: float) -> None:
        """What is asked for at once might end as this one did."""
        self.cooldown.fail(text, now_s)
        self._failed_s = now_s

    def failed(self, node: str, text: str, now_s: float) -> None:
        """node: where; "": not known. text: why, as far as is known."""
        failures = self.cooldown.failures
        self.later(text, now_s)
        if self.cooldown.failures == failures:  # it was under way when another one failed
            return
        self.in_doubt = True
        self._num_failed += 1
        self._nodes.update({node: None} if node else {})
        self._text = text

    @property
    def hopeless(self) -> str:
        """Why to give up, for people; "": go on."""
        if self._went_well or not self._most or self._num_failed < self._most:
            return ""
        where = f" (nodes {', '.join(self._nodes)})" if self._nodes else ""
        return (
            f"nothing could be started in {self._num_failed} places{where}, and nothing ever was in any: "
            f"{self._text}. launch_failures says after how many a run ends so; with 0 it waits."
        )
