"""Loops of a program's own: whoever begins at any version computes what one does that was there all along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from replicas import columns, opened, program  # noqa: E402

from elasticflow.api import SGD  # noqa: E402
from elasticflow.embedding import Embedding  # noqa: E402
from elasticflow.errors import LoopError, ProgramError  # noqa: E402
from elasticflow.frameworks.loop_thread import LoopThread, Unwound  # noqa: E402
from elasticflow.program.loading import Program, load  # noqa: E402
from elasticflow.step.layout import Rule, Vector, rounds_of, stages_of  # noqa: E402
from elasticflow.step.schedule import Kind, Schedule, Work  # noqa: E402
from elasticflow.worker.sums import add  # noqa: E402

NUM_SLICES = 4


def looped(loop: Callable[[Any], object], model: Callable[[], dict[str, Any]]) -> Program:
    def forward(*, params: Any, **columns: Any) -> Any:
        raise ProgramError("there is none")

    return Program("program.py", model, forward, None, None, None, loop=loop, has_forward=False)


def model() -> dict[str, Any]:
    first = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.2))
    return {"body": first, "head": torch.nn.Linear(5, 4), "own": torch.ones(3), "optimizer": SGD(lr=0.1)}


def busy_loop(session: Any) -> None:
    """Two rounds, totals that the second needs, an optimizer of its own, and random numbers all over."""
    body, head, own = (session.params[name] for name in ("body", "head", "own"))
    mine = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([mine], lr=0.1)
    session.keep(own=own, mine=mine, optimizer=optimizer)
    for step in session.steps():
        for part in step.slices():
            loss = torch.nn.functional.cross_entropy(head(body(part.x)), part.y)
            loss.backward()
            step.push(body)
            step.all_reduce("features", body(part.x).detach().mean(0), "mean")
            step.all_reduce("seen", len(part))
            step.broadcast("drawn", torch.rand(3))
            step.cost(loss)
        own.add_(step.total("drawn")).add_(torch.rand(3))
        mean = step.total("features")
        for part in step.slices():
            features = body(part.x).detach() - mean
            (torch.nn.functional.cross_entropy(head(features), part.y) * own.sum()).backward()
            step.push(head)
            step.all_reduce("pull", own * part.x[:, :3].sum(0))
        mine.grad = step.total("pull") / step.total("seen")
        optimizer.step()
        with torch.no_grad():
            own.add_(mine)


def batches(replica: Any, work: Work) -> list[Any]:
    return [replica.prepare(columns(6, seed=10 * work.step + n)) for n in range(NUM_SLICES)]


def computed(replica: Any, work: Work, number: int, batch: Any) -> Vector:
    out = Vector(replica.layout)
    if work.kind is Kind.KEEP:
        replica.keep(work, out)
    else:
        replica.begin_slice(work, number)
        replica.compute(batch, 100 * work.tick + number, 1 / NUM_SLICES, out)
    return out


def pushed(vector: Vector, work: Work) -> list[bytes]:
    groups = zip(vector.layout.groups, vector.groups, strict=True)
    return [array.tobytes() for group, array in groups if group.is_pushed(work.kind, 0, work.stage)]


def applied(state: Vector, outs: list[Vector], work: Work) -> None:
    """What servers do."""
    for left, right in ((0, 1), (2, 3), (0, 2)) if len(outs) > 1 else ():
        add(outs[left], outs[right], work.kind, 0, work.stage)
    for group, mine, root in zip(state.layout.groups, state.groups, outs[0].groups, strict=True):
        if not group.is_pushed(work.kind, 0, work.stage):
            continue
        if group.rule is Rule.UPDATE:
            mine -= 0.1 * root
        elif group.rule is Rule.MEAN:
            mine += root
        elif group.rule in (Rule.FIRST, Rule.TOTAL, Rule.KEPT):
            mine[...] = root


def schedule_of(replica: Any) -> Schedule:
    entries = replica.layout.entries
    return Schedule(
        num_records=24, num_test=0, batch_size=24, num_slices=NUM_SLICES, epochs=5,
        stages=stages_of(entries), rounds=rounds_of(entries),
    )  # fmt: skip


def history(program: Program) -> Iterator[tuple[Work, Vector, list[Vector]]]:
    """Ticks, the version that each begins with, and what its slices give: of one replica, all along."""
    replica = opened(program)
    schedule = schedule_of(replica)
    for tick in range(schedule.total_ticks):
        work, before = schedule.at(tick), Vector(replica.layout)
        for mine, now in zip(before.groups, replica.state.groups, strict=True):
            mine[...] = now
        numbers = [0] if work.kind is Kind.KEEP else range(NUM_SLICES)
        outs = [computed(replica, work, n, batches(replica, work)[n]) for n in numbers]
        yield work, before, outs
        applied(replica.state, outs, work)
        replica.refresh(was_put=True)


@pytest.mark.parametrize("device", ["cpu", "delayed"])
def test_who_begins_anywhere_computes_the_same(device: str) -> None:
    busy = looped(busy_loop, model)
    newcomers = opened(busy, device=device)
    for work, before, outs in history(busy):
        whole = [pushed(out, work) for out in outs]
        for fresh in (True, False):
            replica = opened(busy, device=device) if fresh else newcomers
            for mine, then in zip(replica.state.groups, before.groups, strict=True):
                mine[...] = then
            replica.refresh(was_put=not fresh and not replica.apart)
            for n in [0] if work.kind is Kind.KEEP else (3, 1, 1, 0):
                found = computed(replica, work, n, batches(replica, work)[n])
                assert pushed(found, work) == whole[n], (work, n, fresh)
                if not fresh:
                    break  # it has been elsewhere since, or nowhere


def test_who_has_tried_the_first_step_goes_on_from_a_checkpoint_of_it() -> None:
    """Which has no totals of it: what the loop would make of these itself is not what was kept."""
    busy = looped(busy_loop, model)
    replica = opened(busy)
    for work, before, outs in history(busy):
        if work.step == 1 and work.stage == 0:
            computed(replica, work, 0, batches(replica, work)[0])
        if work.step != 2:
            continue
        for group, mine, then in zip(replica.layout.groups, replica.state.groups, before.groups, strict=True):
            mine[...] = 0 if work.stage == 0 and group.rule is Rule.TOTAL else then
        replica.refresh(was_put=work.stage > 0)
        for n, out in enumerate(outs):
            found = computed(replica, work, n, batches(replica, work)[n])
            assert pushed(found, work) == pushed(out, work), (work, n)


def test_what_a_loop_does_is_part_of_the_layout() -> None:
    layout = opened(looped(busy_loop, model)).layout
    rounds = {entry.name: entry.rounds for entry in layout.entries if entry.rounds}
    assert rounds["body.0.weight"] == (0,) and rounds["head.bias"] == (1,) and rounds["totals.1.pull"] == (1,)
    kept = {entry.name: entry.dtype for entry in layout.of_rule(Rule.KEPT)}
    assert kept["own"] == kept["kept.mine"] == kept["kept.optimizer.state.0.exp_avg"] == "float32"
    assert kept["kept.optimizer.param_groups.0.lr"] == "float64"
    assert (rounds_of(layout.entries), stages_of(layout.entries)) == (2, 3)


def tables() -> dict[str, Any]:
    return {
        "table": Embedding(rows=4, dim=3),
        "net": torch.nn.Sequential(torch.nn.Linear(11, 5), torch.nn.BatchNorm1d(5)),
        "optimizer": SGD(lr=0.1),
    }


def test_with_tables_it_gives_what_forward_gives() -> None:
    def cost(x: Any, y: Any, params: Any) -> Any:
        rows = params["table"](y)
        return params["net"](torch.cat([x, rows], 1)).square().mean()

    def loop(session: Any) -> None:
        for step in session.steps():
            for part in step.slices():
                loss = cost(part.x, part.y, session.params)
                loss.backward()
                step.cost(loss)
                step.push(session.params["net"])

    plain, own = (opened(each) for each in (program(tables, cost), looped(loop, tables)))
    assert plain.layout.signature == own.layout.signature
    for seed in range(3):
        first, second = Vector(plain.layout), Vector(own.layout)
        for replica, out in ((plain, first), (own, second)):
            replica.compute(replica.prepare(columns(seed=seed)), seed, 0.25, out)
        assert [group.tobytes() for group in first.groups] == [group.tobytes() for group in second.groups]
        (mine,), (other,) = first.rows, second.rows
        assert len(mine.keys) and mine.keys.tolist() == other.keys.tolist()
        assert mine.values.tobytes() == other.values.tobytes()


def test_tables_are_updated_once_a_step() -> None:
    def loop(session: Any) -> None:
        session.keep(count=torch.zeros(1))
        unruly("nothing")(session)

    with pytest.raises(LoopError, match="and model\\(\\) has tables: their rows are updated once a step"):
        opened(looped(loop, lambda: {**tables(), "net": torch.nn.Linear(8, 4)}))


# --- rules -----------------------------------------------------------------------------------------


def unruly(how: str) -> Callable[[Any], None]:
    def loop(session: Any) -> None:
        net = session.params["net"]
        if how == "keeps a text":
            session.keep(text="text")
        for step in session.steps():
            late = step.number >= 2
            if how == "returns":
                return
            if how == "keeps late":
                session.keep(more=torch.zeros(1))
            for part in [] if how == "sees nothing" else step.slices():
                if how == "breaks" and late:
                    break
                net(part.x).square().mean().backward()
                if how == "writes" and late:
                    with torch.no_grad():
                        net.weight.mul_(1)
                if how == "wrong":
                    step.push(net.bias, torch.zeros(2))
                elif how == "forgets":
                    step.push(net.weight)
                elif how == "pushes another":
                    step.push(torch.nn.Linear(1, 1))
                elif how not in ("pushes nothing", "outside"):
                    step.push(net)
                if how == "twice":
                    step.push("net.bias", torch.zeros(4))
                if how == "another shape":
                    step.all_reduce("sum", part.x[: 1 + late])
                if how == "another name":
                    step.all_reduce("a 2" if late else "a 1", 1)
                if how == "one more name" and late:
                    step.all_reduce("a 2", 1)
                if how == "early":
                    step.all_reduce("sum", 1)
                    step.total("sum")
                if how == "no number":
                    step.all_reduce("sum", "text")
                if how == "means of counts":
                    step.all_reduce("sum", 1, "mean")
                if how == "no such column":
                    assert part.z
            if how == "outside":
                step.push(net)
            if how == "unknown":
                step.total("unknown")
            if (how == "one more round" and late) or (how == "another round" and not late):
                for part in step.slices():
                    step.all_reduce("again", len(part))

    return loop


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("returns", r"loop\(\) returned before its first step; it must go on"),
        ("sees nothing", r"without a loop over step.slices\(\): it sees none"),
        ("breaks", r"loop\(\) left the loop over step.slices\(\) of step 2 before its end"),
        ("pushes nothing", r"loop\(\) gives nothing in round 1 of a step"),
        (
            "pushes another",
            r"step.push\(\) of a Parameter, which is no parameter that model\(\) returned; there",
        ),
        ("forgets", r"net.bias is a parameter that loop\(\) neither pushes nor keeps"),
        (
            "another shape",
            r"all_reduce of 'sum' is float32 of shape \(2, 8\), and in the first step it was float32 ",
        ),
        ("another name", r"step 2: no all_reduce of 'a 1', and in the first step there was one"),
        ("one more name", r"step 2: all_reduce of 'a 2', and in the first step there was none"),
        ("another round", r"went through step.slices\(\) 1 times in step 2, and 2 times in the first"),
        ("one more round", r"goes through step.slices\(\) more than 1 times in step 2. All steps are like"),
        ("writes", r"net.weight was changed within the loop over slices"),
        ("outside", r"step.push\(\) outside of the loop over step.slices\(\)"),
        ("twice", r"pushes net.bias twice for one slice"),
        ("early", r"step.total\('sum'\) within the loop over step.slices\(\)"),
        ("unknown", r"step.total\('unknown'\): no all_reduce of this step has that name"),
        ("wrong", r"step.push\('net.bias', ...\): the gradient is \(2,\), the parameter of shape \(4,\)"),
        ("no number", r"'sum' is a str; it must be a tensor or a number"),
        ("means of counts", r"all_reduce of 'sum': a mean is of floating numbers"),
        ("keeps a text", r"session.keep\(text=...\) of a str; keep tensors"),
        ("keeps late", r"session.keep\(\) is to be called before session.steps\(\)"),
    ],
)
def test_who_breaks_a_rule_is_told_so(how: str, words: str) -> None:
    bad = looped(unruly(how), lambda: {"net": torch.nn.Linear(8, 4), "optimizer": SGD(lr=0.1)})
    with pytest.raises(LoopError, match=words):
        for _ in history(bad):
            pass


def test_a_record_may_be_at_fault() -> None:
    bad = looped(unruly("no such column"), lambda: {"net": torch.nn.Linear(8, 4), "optimizer": SGD(lr=0.1)})
    with pytest.raises(AttributeError, match="records have no column 'z'; there are x, y"):
        opened(bad)


def test_parameters_want_an_optimizer_if_they_are_pushed() -> None:
    with pytest.raises(ProgramError, match="names no optimizer"):
        opened(looped(unruly("nothing"), lambda: {"net": torch.nn.Linear(8, 4)}))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("loop = 1", "loop is a int; it must be a function of session"),
        ("def encode(x): pass\ndef loop(session): pass", r"defines loop\(\) and encode\(\)"),
        ("def trainable(epoch): pass\ndef loop(session): pass", r"defines loop\(\) and trainable\(\)"),
        ("", r"defines no forward\(\). A program defines model\(\) and forward\(\) or loop\(\)"),
    ],
)
def test_programs_that_cannot_be(tmp_path: Any, source: str, words: str) -> None:
    path = tmp_path / "looped.py"
    path.write_text(f"def model(): pass\n{source}\n")
    with pytest.raises(ProgramError, match=words):
        load(str(path))


# --- the thread ------------------------------------------------------------------------------------


def test_a_function_is_held_up_and_gone_on_with() -> None:
    heard: list[Any] = []

    def run() -> None:
        try:
            heard.append(thread.hold("one"))
            heard.append(thread.hold("two"))
        except Unwound:
            heard.append("unwound")
            raise

    thread = LoopThread(run)
    assert thread.go_on() == "one" and thread.go_on(1) == "two" and heard == [1]
    thread.unwind()
    assert heard == [1, "unwound"] and thread.over
    again = thread = LoopThread(run)
    assert [again.go_on(), again.go_on(2), again.go_on(3)] == ["one", "two", None] and again.over


def test_what_the_function_raises_is_raised_where_it_is_gone_on_with() -> None:
    thread = LoopThread(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        thread.go_on()
    assert thread.over
