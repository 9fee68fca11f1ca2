"""What there is to know of a run at a glance, whether it is under way, over, or was killed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from elasticflow import checkpoint
from elasticflow.checkpoint import Manifest
from elasticflow.cli.asking import ABSENT, UNKNOWN, killed
from elasticflow.cli.connection import Connection
from elasticflow.cli.digests import digest_of
from elasticflow.cli.folders import trust_or_check
from elasticflow.cli.outside import is_outside, shown
from elasticflow.cli.progress import scaled
from elasticflow.cli.report import remembered
from elasticflow.cluster.presence import presence_of
from elasticflow.errors import CheckpointError, ElasticFlowError, NoRunError, RunError, UnknownError
from elasticflow.process.retry import is_away
from elasticflow.process.texts import harmless
from elasticflow.run.folder import ENDED, PastAttempt, RunDir
from elasticflow.run.telling import Past, Status, ToldBest, Untold

ANSWER_S = 3.0
"""So long a master of many may take to answer."""
PREFIX = 12
"""Digits of a digest that tell runs apart, for people."""


class RunSummary(msgspec.Struct, kw_only=True):
    """A run at a glance. None: not known, or there is none.

    begun_at: since 1970, of its first attempt. seconds: of all attempts. worker_hours, faults, best: of the
    last attempt. digest: of the newest checkpoint, of a run that is over. fingerprint: what decides its bits.
    data: the files of its records: runs that say the same have read the same; "": none is known.
    """

    run: str
    state: str
    text: str = ""
    begun_at: float | None = None
    seconds: float | None = None
    attempt: int | None = None
    step: int | None = None
    steps_total: int | None = None
    records: int | None = None
    first_step_s: float | None = None
    worker_hours: float | None = None
    faults: int | None = None
    loss: float | None = None
    best: ToldBest | None = None
    evaluation: dict[str, Any] | None = None
    checkpoint_step: int | None = None
    digest: str | None = None
    fingerprint: dict[str, Any] = {}
    data: str = ""

    @property
    def name(self) -> str:
        """Of its folder, on one line whatever is in it."""
        return harmless(self.run.rstrip("/").rpartition("/")[2]).replace("\n", "\\n")

    @property
    def metric(self) -> str:
        """The best one, where the run asks for that, or else what the last evaluation came to, in words."""
        if self.best:
            return f"{self.best.metric} {scaled(self.best.value)}"
        found = measured(self.evaluation)
        name = next((name for name in found if name != "cost"), "cost")
        value = found.get(name)
        return f"{name} {scaled(value)}" if isinstance(value, (int, float)) else ""


def measured(evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of an evaluation, what was measured."""
    return {name: value for name, value in (evaluation or {}).items() if name not in ("epoch", "step")}


def summary_of(run: RunDir, trust: bool = False) -> RunSummary:
    """What can be told of it; of one that cannot be looked at, why, in its ``text``."""
    try:
        return _summary_of(run, trust)
    except NoRunError as error:
        return RunSummary(run=str(run.path), state=ABSENT, text=str(error))
    except UnknownError as error:
        return RunSummary(run=str(run.path), state=UNKNOWN, text=str(error))
    except (ElasticFlowError, OSError) as error:
        state = UNKNOWN if isinstance(error, OSError) and is_away(error) else "unreadable"
        return RunSummary(run=str(run.path), state=state, text=str(error))


def _summary_of(run: RunDir, trust: bool) -> RunSummary:
    outside = is_outside(run, trust)
    if not outside:
        trust_or_check(run, trust)
    told = shown(run) if outside else _told(run)
    if isinstance(told, Untold):
        return RunSummary(run=str(run.path), state=told.state, text=told.text)
    summary = _of(run, told)
    manifest = None
    with suppress(CheckpointError, OSError):  # a store may be away: what is known of the run stays so
        manifest = None if outside else _newest(run)
    if manifest:
        summary.fingerprint, summary.data = manifest.fingerprint, _data_of(manifest)
        if summary.state in (*ENDED, "killed"):
            summary.digest = digest_of(run, manifest)
    return summary


def _told(run: RunDir) -> Past | Untold:
    """Raises RunError."""
    run.config()  # raises, and says that this is no run
    presence = presence_of(run)
    if presence.is_alive():
        if not presence.has_master():
            return Untold(state="waiting", text=presence.waits_for())
        with Connection(run) as connection:
            return connection.status(ANSWER_S)
    if report := run.read_report():
        return report
    try:
        return remembered(run, presence)
    except RunError:
        return killed(run, presence)


def _of(run: RunDir, told: Past) -> RunSummary:
    attempts = run.past_attempts()
    return RunSummary(
        run=str(run.path),
        state=told.state if isinstance(told, Status) else "killed",
        text=getattr(told, "text", "") or "",
        begun_at=min(told.started_at, *(each.started_at for each in attempts))
        if attempts
        else told.started_at,
        seconds=told.total_s,
        attempt=told.attempt,
        step=told.step,
        steps_total=told.steps_total,
        records=told.records_covered,
        first_step_s=told.first_step_s,
        worker_hours=round(sum(told.workers_seconds.by_name().values()) / 3600, 4),
        faults=told.num_faults,
        loss=told.loss,
        best=told.best,
        evaluation=told.evaluation or _before(attempts, told.step),
        checkpoint_step=told.checkpoint_step,
    )


def _before(attempts: Sequence[PastAttempt], step: int) -> dict[str, Any] | None:
    """The last evaluation of a run that was resumed, and has made none since; None: it is not there yet."""
    last = next((each.evaluation for each in reversed(attempts) if each.evaluation), None)
    return last if last and int(last.get("step", step)) <= step else None


def _data_of(manifest: Manifest) -> str:
    """Such as ``clicks.parquet and 11 more, 4,210,000 bytes, 3f2a91c4``."""
    if not (sources := manifest.sources):
        return ""
    told = (sources, *map(manifest.work.get, ("num_records", "num_test")))  # filters leave out some of a file
    digest = hashlib.blake2b(msgspec.json.encode(told), digest_size=4).hexdigest()
    more = f" and {len(sources) - 1} more" if sources[1:] else ""
    return f"{sources[0][0]}{more}, {sum(count for _, count, _ in sources):,} bytes, {digest}"


def _newest(run: RunDir) -> Manifest | None:
    storage = run.checkpoints()
    steps = checkpoint.commits(storage)
    return checkpoint.load_manifest(storage, steps[-1]) if steps else None
