"""What the program's ``on_epoch`` says to an evaluation: asked here, decided by the leading server."""

from __future__ import annotations

import json
import traceback

from elasticflow.errors import ProgramError
from elasticflow.process.texts import sendable
from elasticflow.program.loading import describe
from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import MOST_CHARS, Advice, EpochInfo, Question, Tuning
from elasticflow.training.standing import COST
from elasticflow.worker.loaded import Loaded


def ask(loaded: Loaded, schedule: Schedule, question: Question) -> Advice:
    """Never raises: what the program raises is part of what it says."""
    path = loaded.program.path
    try:
        return _said(loaded, _info(loaded, schedule, question))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's program raises)
        traceback.print_exc()
        text = str(error) if isinstance(error, ProgramError) else f"on_epoch() raised {describe(error, path)}"
        text = text if path in text else f"{path}: {text}"
        return Advice(error=sendable(text, MOST_CHARS)[:MOST_CHARS])


def try_out(loaded: Loaded, cost: float) -> Advice:
    """What it says to a first epoch of which cost and all metrics are as this. Raises ProgramError."""
    names = (COST, *loaded.replica.metrics.told)
    values = json.dumps(dict.fromkeys(names, cost))
    schedule = loaded.schedule  # of one epoch
    question = Question(tick=schedule.total_ticks - 1, values=values, memory="", tuning=Tuning())
    advice = ask(loaded, schedule, question)
    if advice.error:
        raise ProgramError(advice.error)
    return advice


def _info(loaded: Loaded, schedule: Schedule, question: Question) -> EpochInfo:
    work = schedule.at(question.tick)
    values = json.loads(question.values)
    rate = loaded.learning_rate(schedule.at(question.tick - 1), question.tuning, schedule.total_steps)
    return EpochInfo(
        epoch=work.epoch,
        step=work.step,
        cost=values.pop(COST),
        metrics=values,
        learning_rate=loaded.replica.optimizers.optimizer.lr if rate is None else rate,
        memory=json.loads(question.memory) if question.memory else {},
    )


def _said(loaded: Loaded, info: EpochInfo) -> Advice:
    assert loaded.program.on_epoch
    said = loaded.program.on_epoch(info)
    if said is None:
        return Advice()
    if not isinstance(said, Advice):
        raise ProgramError(
            f"on_epoch() returned {said!r:.80}; it must return ef.stop(why), ef.go_on(...), or nothing."
        )
    if said.lr is None and said.lr_scale == 1.0 or loaded.program.learning_rate is not None:
        return said
    first = loaded.replica.optimizers.optimizer
    own = next((table for table in loaded.replica.tables if table.updated_by(first).lr != first.lr), None)
    if own is not None:
        raise ProgramError(
            "on_epoch() changed the learning rate, and a table has an optimizer with another one of its own, "
            "which has no relation to it; define learning_rate(step, epoch), which is that of all."
        )
    return said
