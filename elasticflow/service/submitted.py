"""A run on a cluster, followed by the service: submitted, told its grants, and looked for when it is silent.

Who answers is alive. Of a run that says nothing the cluster is asked: it may wait for its place, have ended,
or live out of reach; in that case it keeps what it has. What its workers may still hold after its leader's
end is nobody else's until the cluster says that those places are free.
"""

from __future__ import annotations

from math import inf

from elasticflow.errors import ElasticFlowError, UnknownError
from elasticflow.master.log import say
from elasticflow.run.folder import Address
from elasticflow.service import happenings as hp
from elasticflow.service.follower import REPLACED, Follower
from elasticflow.service.hands import Hands, RunSight
from elasticflow.service.state import Granted
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import Situation
from elasticflow.wire.sockets import Context

SILENT_S = 2.0
"""A run that has said nothing for so long is looked for."""
SILENT = "its master does not answer"
AGAIN_S = 5.0
"""After so long is tried again what the cluster would not do just now."""


class SubmittedFollower(Follower):
    """See the module's docstring."""

    def __init__(
        self, context: Context, name: str, run_dir: str, measure_s: float, hands: Hands, *, mark: str = ""
    ) -> None:
        super().__init__(context, name, run_dir, measure_s, mark=mark)
        self._hands = hands
        self._sight: RunSight | ElasticFlowError | None = None
        """What a look has shown, and nobody has acted on."""
        self._answer: str | ElasticFlowError | None = None
        """What became of an order."""
        self._ordered = ""
        """What is being done: a look, a beginning, an end, listening; "": nothing."""
        self._begins = False
        """Its leader was submitted, and was not heard yet: only its folder tells when it listens."""
        self._heard_s = self._again_s = -inf
        self._was_granted = 0
        self._is_gone = False
        """It was held at zero, and nothing is left of it: it does not come back by itself."""
        self._told = ""

    @property
    def has_answer(self) -> bool:
        return self._sight is not None or self._answer is not None

    def turn(self, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        happened = self.listen(now_s)
        if granted.workers and not self._was_granted and not self._told:
            self._again_s = -inf  # it is to begin: nobody waits for the next look
        self._was_granted = granted.workers
        if self._link is not None:
            self._tell(granted)
        if self._answer is not None:
            happened += self._hear(self._answer, now_s)
        sight, self._sight = self._sight, None
        if isinstance(sight, ElasticFlowError):
            self._complain(f"cannot be looked at: {sight}")
            self._again_s = now_s + AGAIN_S
        elif sight is not None:
            self._again_s = now_s + SILENT_S
            happened += self._act(sight, granted, held, now_s)
        rests = self._is_gone and not granted.workers and not held
        if not self._ordered and not rests and now_s >= max(self._heard_s + SILENT_S, self._again_s):
            self._ordered = "look"
            self._hands.look_at(self.run, self._seen)
        elif not self._ordered and self._begins:
            self._ordered = "listen"
            self._hands.listen_for(self.run, self._listened)
        return happened

    def _take(self, situation: Situation, now_s: float) -> list[hp.Happening]:
        self._heard_s, self.waits, self._told = now_s, "", ""
        return super()._take(situation, now_s)

    # --- answers, which come between turns -------------------------------------------------------

    def _seen(self, answer: RunSight | ElasticFlowError) -> None:
        self._ordered, self._sight = "", answer

    def _listened(self, answer: RunSight | ElasticFlowError) -> None:
        self._ordered = ""
        if isinstance(answer, RunSight) and answer.master is not None:
            self._sight = answer

    def _done(self, answer: str | ElasticFlowError) -> None:
        self._answer = answer

    # --- what follows from them ------------------------------------------------------------------

    def _act(self, sight: RunSight, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        self.waits, self._is_gone = sight.waits, False
        if self._is_anothers(sight.mark):
            self._let_go()
            return [hp.Over(name=self.name, state="failed", text=REPLACED)]
        self._begins = self._begins and sight.alive and sight.master is None
        if sight.alive:
            if sight.master is not None and sight.master[0] != self._address:
                self._greet(*sight.master, granted)
            elif sight.master is not None:  # it has been told what it is granted
                silent = now_s >= self._heard_s + SILENT_S
                self.waits = (sight.waits or SILENT) if silent else ""
            elif not granted.workers:
                self._ordered = "end"
                self._hands.take_back(self.run, self._done)
            return []
        self._let_go()
        if sight.places:
            left = hp.Held(name=self.name, workers=sight.places, number=granted.number)
            return [left] if max(sight.places, granted.workers) < held else []
        ending = self._ending(sight.report, sight.words)
        if ending is not None:
            return [ending]
        if granted.workers:
            self._try()
            self._ordered = "begin"
            self._hands.begin(self.run, self._done)
            return []
        self._is_gone = True
        return [hp.Held(name=self.name, workers=0, number=granted.number)] if held else []

    def _greet(self, address: Address, keys: MemberKeys, granted: Granted) -> None:
        try:
            self._connect(address, keys)
        except UnknownError as error:
            self._complain(str(error))
        else:
            self._tell(granted)

    def _hear(self, answer: str | ElasticFlowError, now_s: float) -> list[hp.Happening]:
        """Of a beginning, or of an end before it."""
        ordered, self._ordered, self._answer = self._ordered, "", None
        if isinstance(answer, ElasticFlowError):
            self._again_s = now_s + AGAIN_S
            self._complain(str(answer))
            if ordered == "begin" and not self._hands.passes(answer):
                return self._cannot_begin(answer)
            self._tries -= ordered == "begin"
        elif ordered == "begin":
            self._told, self._begins = "", True
            say(f"{self.name}: its leader is job {answer}")
        elif answer:
            self._tries = 0
            say(f"{self.name}: {answer}")
        return []

    def _complain(self, text: str) -> None:
        """Into the log, once."""
        self.waits = text
        if text != self._told:
            self._told = text
            say(f"warning: {self.name}: {text}; tried again")
