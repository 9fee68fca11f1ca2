"""Those who come: admitted or refused, told what to do, and heard from then on."""

from __future__ import annotations

from elasticflow.master.actions import Action, FixAction, HaltAction, NoteAction, QuitAction
from elasticflow.master.admission import changed_since, miscomputed, objection, unlikeness
from elasticflow.master.choosing import choose
from elasticflow.master.deciding import departures, ending, generations, planning, records, staffing
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.members import Member, MemberState, RunState
from elasticflow.process.fingerprint import OURS
from elasticflow.process.gpu_state import GpuState
from elasticflow.run.config import AUTO
from elasticflow.wire.messages import Heartbeat, Join, Ready


def on_join(run: Facts, event: Join, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is None or member.role != event.role:
        return [QuitAction(event.name, "not a member of this run (any more)")]
    if text := other_code(run, event):
        return refuse(run, member, text, now_s)
    member.host, member.pid, member.endpoint = event.host, event.pid, event.endpoint
    member.available_bytes = event.available_bytes
    member.heard_s = now_s
    if 0 <= event.rehearsed_s < float("inf"):
        run.stall.pace.guess(event.rehearsed_s * run.config.num_slices)
    run.quarantine.learn(event.excluded)
    if member.state is MemberState.STARTING:
        member.state = MemberState.LOADING
        # A master that died may have given it chunks, and not written that down: it offers what it has.
        if member.role == "server" and member.name in run.staff.inherited:
            member.state, member.since_s = MemberState.HALTED, now_s
            return [HaltAction(member.name, run.row.generation + 1)]
    return (
        admit_worker(run, member, event, now_s) if member.role == "worker" else generations.form(run, now_s)
    )


def admit_worker(run: Facts, member: Member, event: Join, now_s: float) -> list[Action]:
    if event.spec is None:
        return [QuitAction(member.name, "said nothing of the program")]
    unlike, changes = unlikeness(member.name, event.fingerprint, run.agreed.fingerprint, run.agreed.made_with)
    if unlike and run.config.fingerprint == "strict":
        return refuse(run, member, unlike, now_s)
    unlike = f"{unlike}: the same answer is no longer promised" if unlike else changes
    notes: list[Action] = [NoteAction("warning", unlike)] if unlike else []
    chosen = choose_slices(run, member, event, now_s)
    if member.state is MemberState.DRAINING:
        return chosen
    notes += chosen
    if run.spec is None:
        text = changed_since(member.name, event.fingerprint, run.agreed.made_with)
    elif text := objection(run.spec, event.spec):
        return ending.fail(run, f"{member.name} {text}", now_s)
    else:
        text = miscomputed(member.name, event.fingerprint, run.agreed.fingerprint)
    if text:
        if run.config.fingerprint == "strict":
            return refuse(run, member, text, now_s)
        notes.append(NoteAction("warning", f"{text}: the same answer is no longer promised"))
    if run.spec is None:
        return [*notes, *meet_program(run, event, now_s)]
    return [*notes, *generations.assign_worker(run, member)]


def choose_slices(run: Facts, member: Member, event: Join, now_s: float) -> list[Action]:
    """The first worker may choose how many slices there are. Others that chose other ones meanwhile leave:
    who comes in their place is told the number."""
    count, usual = event.num_slices or run.config.num_slices, run.config.num_slices
    possible = run.config.worker_range[1] <= count <= run.config.batch_size
    if run.spec is None and run.config.free_slices and possible and event.slices_why:
        run.choose_slices(count)
        note = NoteAction("info", f"a batch has {count} slice{'s' * (count > 1)}: {event.slices_why}")
        return [FixAction(run.config), note]
    if count == usual:
        return []
    member.state = MemberState.DRAINING
    text = f"the run has {usual} slices, and it would compute {count}"
    return [QuitAction(member.name, text), *staffing.size(run, now_s)]


def other_code(run: Facts, event: Join) -> str:
    """How a member runs another ElasticFlow than the first one, if that is not allowed; else empty."""
    code, first = event.fingerprint.get(OURS, ""), run.agreed.fingerprint.get(OURS, run.agreed.code)
    run.agreed.code = first or code
    if not code or code == run.agreed.code or run.config.fingerprint != "strict":
        return ""
    return f"{event.name} would compute other bits than the first member ({OURS}: {run.agreed.code} / {code})"


def refuse(run: Facts, member: Member, text: str, now_s: float) -> list[Action]:
    """One that would compute other bits."""
    quit_ = QuitAction(member.name, text)
    why = text.removeprefix(f"{member.name} ")  # what tells of a fault begins with the name
    return [quit_, *departures.fail(run, member, f"{why}. Allow it with fingerprint: warn.", now_s)]


def meet_program(run: Facts, event: Join, now_s: float) -> list[Action]:
    """The first worker says what the program is; from that follows all that is to be done."""
    assert event.spec is not None
    run.agreed.fingerprint = event.fingerprint
    actions: list[Action] = []
    if run.config.strategy == AUTO:
        choice = choose(run.config, event.spec, event.available_bytes)
        run.config = run.config.chosen(*choice)
        note = NoteAction("info", f"strategy: {choice.strategy}: {choice.why}")
        actions += [FixAction(run.config), note]
    schedule = run.learn(event.spec)
    if text := schedule.too_long(tables=bool(event.spec.tables)):
        return [*actions, *ending.end(run, RunState.FAILED, text)]
    actions += [NoteAction("warning", text) for text in event.spec.warnings]
    if run.config.compression == "top-k":
        text = "compression: top-k: the model depends on who computes, so the same answer is not promised"
        actions.append(NoteAction("warning", text))
    version = max(run.version, run.committed_tick or 0)
    run.standings.begin(version)
    if version >= schedule.total_ticks:
        return actions + ending.end(
            run, RunState.FINISHED, f"there is nothing left to do: {schedule.total_steps} steps are done"
        )
    if run.standings.stop(version):  # not with an error: then it is asked once more
        text = f"there is nothing left to do: {ending.stopped_early(run, version)}"
        return actions + ending.end(run, RunState.FINISHED, text)
    for name in run.row.names:
        if name not in run.members:  # it was not known before that it is needed
            actions += staffing.start(run, name, "server", now_s)
    servers = zip(run.row.names[: run.config.num_places], run.row.chunks, strict=False)
    if not run.config.all_reduce and (idle := [name for name, chunks in servers if not chunks]):
        text = f"the model is too small for {run.config.servers} servers: {', '.join(idle)} hold nothing"
        actions.append(NoteAction("warning", text))
    return actions + generations.form(run, now_s)


def on_ready(run: Facts, event: Ready, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is None or event.generation < run.row.generation:
        return []
    member.heard_s = now_s
    if event.generation > run.row.generation:
        return of_one_before(run, member, event.generation, now_s)
    if member.state is MemberState.LOST:
        member.come_back()  # to all servers
    if member.role == "worker" and member.state is MemberState.READY:
        return records.attempts(run, event.name)  # as in ``on_heartbeat``: of servers that begin anew
    if member.state is not MemberState.LOADING:
        return []
    member.state, member.since_s, member.moved_s = MemberState.READY, now_s, now_s
    run.failures.become_ready()
    if member.role == "server":
        member.was_ready = True
        return generations.serve(run, now_s)
    if run.state is RunState.STARTING:
        run.state = RunState.RUNNING
        run.cuts.begin(now_s)
    first, member.was_ready = not member.was_ready, True
    text = f"{event.name} has joined, {event.started_s:.2f} s after its start"
    notes: list[Action] = [NoteAction("info", text)] if first else []
    return [*notes, *staffing.relieve(run, now_s), *planning.replan(run), *records.attempts(run, event.name)]


def of_one_before(run: Facts, member: Member, generation: int, now_s: float) -> list[Action]:
    """A member knows of a generation that a master before this one died of before it wrote that down. What
    that had told of it is not what this one would: all begin another."""
    run.row.generation = member.generation = generation
    return generations.halt_all(run, now_s)


def on_heartbeat(run: Facts, event: Heartbeat, now_s: float) -> list[Action]:
    member = run.members.get(event.name)
    if member is None:
        return [QuitAction(event.name, "not a member of this run (any more)")]
    # It has come back to the servers, and that its connection had closed was told later than that it has.
    if member.state is MemberState.LOST and member.heard_s > member.since_s and event.tick > member.tick:
        member.come_back()
    if moved := event.tick != member.tick:
        member.moved_s, member.asked_s, member.anew = now_s, None, 0
    member.heard_s, member.tick = now_s, event.tick
    member.dropped, member.refused = event.dropped, event.refused
    member.memory_bytes, member.activity = event.memory_bytes, event.activity
    member.tries = event.tries
    member.slice_s = event.slice_s if 0 <= event.slice_s < float("inf") else 0.0
    member.usage = event.usage or member.usage
    actions = [*note_gpu(member, event.gpu), *departures.settle_doubts(run, member, now_s)]
    if event.generation > run.row.generation:
        return actions + of_one_before(run, member, event.generation, now_s)
    if member.generation != generations.SEVERED:
        member.generation = max(member.generation, event.generation)
    if member.role == "worker" and min(member.generation, event.generation) < run.row.generation:
        actions += generations.assign_worker(run, member)
    if member.state is MemberState.SUSPECT:
        member.state = MemberState.READY
        note = NoteAction("info", f"{event.name} is heard again")
        actions += [
            note,
            *planning.replan(run),
            *records.attempts(run, event.name),
            *records.judge(run, now_s),
        ]
    elif moved and member.role == "worker" and member.state is MemberState.READY:
        actions += records.attempts(run, event.name)  # it may have been asked before it had this version
    return actions + (planning.follow_speeds(run, now_s) if member.role == "worker" else [])


def note_gpu(member: Member, gpu: GpuState | None) -> list[Action]:
    """What is new of a worker's GPU: that it is in trouble, or that it is over."""
    before, member.gpu = member.gpu.trouble if member.gpu else "", gpu or member.gpu
    if member.gpu is None or member.gpu.trouble == before:
        return []
    of = f"the {member.gpu.name} of {member.name} on {member.host}"
    kind, text = ("warning", member.gpu.trouble) if member.gpu.trouble else ("info", "well again")
    return [NoteAction(kind, f"{of}: {text}")]


HANDLERS: Handlers = {
    Join: on_join,
    Ready: on_ready,
    Heartbeat: on_heartbeat,
}
