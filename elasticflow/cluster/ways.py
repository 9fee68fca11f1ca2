"""What one cluster is like, in numbers and words: see ``sizing``."""

from __future__ import annotations

import msgspec

from elasticflow.cluster.asks import AskPhase
from elasticflow.cluster.cooldown import NEVER_S


class ClusterWays(msgspec.Struct, frozen=True, kw_only=True):
    """How one cluster differs from another."""

    waiting: frozenset[str]
    """Words for the state of what has no place; all others are over, or have one."""
    running: frozenset[str]
    """Of these, those in which its process runs, or should."""
    who: str = ""
    """Who answers polls, for people; "": its errors say so themselves."""
    look_s: float = 1.0
    """Polls are no closer together than this."""
    silence_s: tuple[float, float] | None = None
    """Pauses while nobody answers: the first, and the longest; None: from ``poll_s`` to 30 s."""
    ahead: tuple[int, int] = (4, 64)
    """How many may wait beyond the least number: at first, and ever."""
    left_out: str = "is left out"
    """What becomes of a node on which members fail."""
    end_again_s: float = 30.0
    """What still lives so long after it was ended is ended again."""
    give_way_s: float = 10.0
    """After a member was told to leave, its place is somebody else's for so long."""
    stands_back: bool = False
    """Whether nothing at all is asked for then; else, nothing beyond the least number."""
    names_asks: bool = False
    """Whether polls show an ask whose answer was lost; else nobody knows, and its name is not used again."""
    forget_s: float = NEVER_S
    forget_polls: int = 1
    """What so many polls in a row do not show, begun so long after it was last seen, is lost."""
    line: tuple[AskPhase, ...] = (AskPhase.ASKED, AskPhase.UNSURE, AskPhase.WAITING)
    """Phases that count as waiting in line."""
    ended: str = "{} is ended"
    """Of what is nobody's, by its id."""
    ending: tuple[AskPhase, ...] = (AskPhase.LEAVING,)
    """Phases in which whatever lives is to end."""
