"""When to ask how things are: at a pace, sooner when something has happened, later while nobody answers."""

from __future__ import annotations

from elasticflow.cluster.cooldown import NEVER_S, Cooldown


class Polls:
    """One question at a time. ``silence`` is how long to wait while nobody answers."""

    def __init__(self, every_s: float, silence: Cooldown, look_s: float = 0.0) -> None:
        """look_s: two are no closer together than this, whatever happens."""
        self.silence = silence
        self.silent_since_s = NEVER_S
        self.began_s = NEVER_S
        """When the last one was asked."""
        self.is_asking = False
        self._every_s, self._look_s = every_s, look_s
        self._due_s = NEVER_S
        self._has_news = False

    def look(self) -> None:
        """Something has happened of which a poll may tell."""
        self._has_news = True

    @property
    def next_s(self) -> float | None:
        """When to ask; None: an answer is to come first."""
        if self.is_asking:
            return None
        if self._has_news and not self.silence.failures:
            return min(self._due_s, self.began_s + self._look_s)
        return self._due_s

    def ask(self, now_s: float) -> None:
        self.is_asking, self._has_news, self.began_s = True, False, now_s

    def answered(self, now_s: float) -> float:
        """Returns for how long nobody has answered; 0: one question without an answer happens to anybody."""
        silent_s = now_s - self.silent_since_s if self.silence.failures > 1 else 0.0
        self.is_asking, self._due_s = False, now_s + self._every_s
        self.silence.clear()
        return silent_s

    def failed(self, error: Exception, now_s: float) -> bool:
        """Nobody has answered. Returns whether that is to be told: the second time in a row."""
        self.is_asking = False
        if not self.silence.failures:
            self.silent_since_s = now_s
        self.silence.fail(str(error), now_s)
        self._due_s = self.silence.until_s
        return self.silence.failures == 2
