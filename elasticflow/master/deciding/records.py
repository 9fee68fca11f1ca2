"""Records on which the program raises, or ends its process: tried by all who are there, then left out."""

from __future__ import annotations

from elasticflow.master.actions import Action, AttemptAction, NoteAction, QuarantineAction
from elasticflow.master.deciding import ending
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.members import MemberState
from elasticflow.master.quarantine import limit_of
from elasticflow.wire.messages import Faulty

_ALONE = {False: "on none of its records alone", True: "from each of its records alone"}


def on_faulty(run: Facts, event: Faulty, now_s: float) -> list[Action]:
    if event.tick < run.version or event.name not in run.members:
        return []
    if event.rows and run.quarantine.rows.issuperset(event.rows):
        return [QuarantineAction((event.name,), run.excluded)]  # it has not heard of it (yet)
    first = run.quarantine.report(event)
    others = tuple(m.name for m in run.of("worker", MemberState.READY) if m.name != event.name)
    ask = AttemptAction(others, event.tick, event.slice, event.dies)
    attempt: list[Action] = [ask] if first and others else []
    return attempt + judge(run, now_s)


def attempts(run: Facts, name: str) -> list[Action]:
    """Has a worker that is here (again) try the slices that wait for its word as well."""
    untried = run.quarantine.untried(name)
    return [AttemptAction((name,), t, n, run.quarantine.is_deadly(t, n)) for t, n in untried]


def judge(run: Facts, now_s: float) -> list[Action]:
    """Leaves out what the program raises on for every worker that is there, never for one alone.

    Who drains and carries servers has a word only where nobody else has: it may have computed all that it
    will, and waits itself until the step is made, after which its servers move.
    """
    if run.conclusion.closing:
        return []
    there = {m.name for m in run.of("worker", MemberState.READY, MemberState.DRAINING)}
    actions: list[Action] = []
    for report in run.quarantine.verdicts(there.difference(run.leaving_carriers) or there):
        actions += condemn(run, report, now_s)
    return actions


def condemn(run: Facts, report: Faulty, now_s: float) -> list[Action]:
    rows = [row for row in report.rows if row not in run.quarantine.rows]
    does = "does not come back from" if report.dies else "raises on"
    if report.test_rows:
        named = ", ".join(map(str, report.test_rows))
        text = f"the program {does} row {named} of the test data: {report.text}"
        return ending.fail(run, f"{text} (none of these is left out)", now_s, report.traceback)
    if not rows:
        text = f"the program {does} a slice of tick {report.tick}, though {_ALONE[report.dies]}"
        return ending.fail(run, f"{text}: {report.text}", now_s, report.traceback)
    assert run.spec
    limit = limit_of(run.config, run.spec.num_records)
    if len(run.excluded) + len(rows) > limit.most:
        named = ", ".join(map(str, rows))
        text = f"the program {does} row {named} of the training data: {report.text}"
        return ending.fail(run, f"{text} ({limit.reason})", now_s, report.traceback)
    if report.dies:  # it has been found out why they had ended
        run.failures.explain()
    run.quarantine.exclude(rows, report.tick)
    names = tuple(m.name for m in run.of("worker"))
    notes = [NoteAction("fault", f"row {row} is left out from now on: {report.text}") for row in rows]
    return [*notes, QuarantineAction(names, run.excluded)]


HANDLERS: Handlers = {
    Faulty: on_faulty,
}
