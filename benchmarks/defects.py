"""Defects of the kinds that there have been, or may be, in protocol and processes: see ``mutations``."""

from __future__ import annotations

from typing import NamedTuple


class Defect(NamedTuple):
    """``right``, which occurs once in ``file``, becomes ``wrong``."""

    what: str
    file: str
    right: str
    wrong: str


PS, CORE = "ps/elasticflow_ps", "elasticflow"

DEFECTS = (
    # --- servers that workers carry
    Defect(
        "a worker ends with the servers that it carries, needed or not",
        f"{CORE}/worker/life.py",
        "            carrying.wait(link, last_word)",
        "            pass",
    ),
    Defect(
        "another master does not hear that a worker has left which carries servers",
        f"{CORE}/worker/carrying.py",
        "                link.send(last_word)",
        "                pass",
    ),
    Defect(
        "a server that a worker carries may take for ever to join",
        f"{CORE}/master/deciding/staffing.py",
        "    member.placed_s = now_s if carrier else None  # it waits for no place of its own\n",
        "",
    ),
    Defect(
        "who drains with the servers that it carries is waited for to try a record",
        f"{CORE}/master/deciding/records.py",
        "    for report in run.quarantine.verdicts(there.difference(run.leaving_carriers) or there):",
        "    for report in run.quarantine.verdicts(there):",
    ),
    Defect(
        "copies are kept by servers that die with the same worker",
        f"{PS}/snapshots.py",
        "if not mine or carriers[other] != mine] or others",
        "] or others",
    ),
    Defect(
        "nobody comes to carry a server once all workers have left",
        f"{CORE}/master/deciding/generations.py",
        "        run.conclusion.all_made = False\n        actions = staffing",
        "        actions = staffing",
    ),
    Defect(
        "a master gives carried servers names that one before it had given",
        f"{CORE}/master/deciding/facts.py",
        "_names(len(shares), self.config, self.staff.next_server)",
        "_names(len(shares), self.config)",
    ),
    # --- relays
    Defect(
        "a relay hands down the first version that it gets, whatever others have",
        f"{PS}/relay_state.py",
        "        if newest > self._start and newest - 1 not in whole:",
        "        if newest < self._start and newest - 1 not in whole:",
    ),
    Defect(
        "a relay waits for ever for who is late",
        f"{PS}/relay_state.py",
        "        late = now_s >= self._late_s()",
        "        late = False",
    ),
    Defect(
        "a relay does not tell its server that it has nothing more",
        f"{PS}/relay_state.py",
        "PushOnAction(replace(last.push, pull=True), last.value)",
        "last",
    ),
    Defect(
        "a relay forgets the orders of a version that is like the one before",
        f"{PS}/relay_state.py",
        "self.coming[message.parcel] = _VersionPart(message, value)",
        "self.coming[message.parcel] = _VersionPart(self.held[self.version][message.parcel].message, value)",
    ),
    Defect(
        "the group of a relay that is lost is told of it again",
        f"{CORE}/master/deciding/relaying.py",
        "DIRECT if mine == group else mine for",
        "mine for",
    ),
    Defect(
        "what workers die of is forgotten with the servers that they carried",
        f"{CORE}/master/failures.py",
        "return self._suspect_to if self._untold and self.gone >= MANY_GONE else -1",
        "return -1",
    ),
    Defect(
        "who leaves the row gives no copies",
        f"{CORE}/master/deciding/generations.py",
        "known = event.name in (*row.names, *row.leaving, *row.coming.values())",
        "known = event.name in (*row.names, *row.coming.values())",
    ),
    # --- memory whose loan is over too early
    Defect(
        "of a message's frames only the first is waited for",
        f"{CORE}/wire/sending.py",
        "            trackers.append(tracker)",
        "            trackers[:] = trackers or [tracker]",
    ),
    Defect(
        "of a message's frames only the last is waited for",
        f"{CORE}/wire/sending.py",
        "            trackers.append(tracker)",
        "            trackers[:] = [tracker]",
    ),
    Defect(
        "a version that is being sent is not waited for",
        f"{PS}/versions.py",
        "self._store.track(made, parcel, self._ways.answer(worker, message, arrays, lent_bytes))",
        "self._ways.answer(worker, message, arrays, lent_bytes)",
    ),
    Defect(
        "what waits to travel with others is said to have left",
        f"{CORE}/wire/outbox.py",
        "        return self._departure if arrays else None",
        "        return None",
    ),
    Defect(
        "rows are waited for that have not been asked for yet",
        f"{PS}/reading.py",
        "        self.hurry()\n        while question.asked",
        "        while question.asked",
    ),
    Defect(
        "a worker does not say that it has lost its servers",
        f"{CORE}/worker/worker.py",
        "        self._link.send(Lost(name=self._present.name, member=event.member))\n\n    def _catch_up",
        "\n    def _catch_up",
    ),
    Defect(
        "a worker fills a vector again of which one message has left",
        f"{PS}/vector_pool.py",
        "all(tracker.done for tracker in self._sending[0][1])",
        "all(tracker.done for tracker in self._sending[0][1][:1])",
    ),
    Defect(
        "a worker fills a vector again that a server reads where it lies",
        f"{PS}/client.py",
        "used_up = [_UsedUp(now.state, tick, at_once=at_once)] if lent else []",
        "used_up: list[Tracker] = []",
    ),
    Defect(
        "a neighbour is thought to be done with a version a tick too early",
        f"{PS}/neighbours.py",
        "self._neighbour.adopted >= self._version or",
        "self._neighbour.adopted >= self._version - 1 or",
    ),
    Defect(
        "a neighbour is thought to read nothing",
        f"{PS}/versions.py",
        "self._store.track(made, parcel, self._neighbours.reading(worker, version))",
        "pass",
    ),
    Defect(
        "a late answer is taken for that to the last question",
        f"{PS}/remote.py",
        "message.heard < self.asked",
        "message.heard < 0",
    ),
    Defect(
        "memory is used again though a snapshot holds it",
        f"{PS}/store.py",
        "        if not slab.holds:\n            self._loose",
        "        if slab:\n            self._loose",
    ),
    # --- what is applied twice, or not at all
    Defect(
        "asynchronously a slice is applied a second time",
        f"{PS}/state.py",
        "        if not tree.add(node, None):\n            return []",
        "        tree.add(node, None)",
    ),
    Defect(
        "a push of the tick before is taken for one of this tick",
        f"{PS}/state.py",
        "        past = push.tick < self.version\n",
        "        past = push.tick < self.version - 1\n",
    ),
    Defect(
        "a parcel that is applied takes another push",
        f"{PS}/state.py",
        "        if push.parcel in tick.applied or push.parcel in tick.roots:",
        "        if push.parcel in tick.roots:",
    ),
    Defect(
        "a sum below one that is there counts once more",
        f"{CORE}/step/slices.py",
        "        if self.holds(node):\n            return False",
        "        if node in self._values:\n            return False",
    ),
    Defect(
        "sums are added in the order in which they come",
        f"{PS}/serving.py",
        "        return left.plus(right)",
        "        return right.plus(left)",
    ),
    Defect(
        "a slice that cannot be computed counts as one without records",
        f"{CORE}/worker/computing.py",
        "        if filled is not None:\n            sums.take(number, vector if filled else None)",
        "        sums.take(number, vector if filled else None)",
    ),
    Defect(
        "the rest of a node is not pushed",
        f"{PS}/outgoing.py",
        "            if missing != 0:",
        "            if missing is None:",
    ),
    Defect(
        "a parcel leaves before its last gradient is final",
        f"{PS}/outgoing.py",
        "                    if missing == 1:",
        "                    if missing == self._routes.all[place].needs:",
    ),
    Defect(
        "who starts from the beginning once more does so with trained values",
        f"{CORE}/worker/worker.py",
        "        if from_nothing and self._started_s is not None:",
        "        if False:",
    ),
    # --- versions
    Defect(
        "who waits for a version that is whole is not served",
        f"{PS}/state.py",
        "            if wait.version <= self.version:",
        "            if wait.version < self.version:",
    ),
    Defect(
        "nobody is told that the first values are there",
        f"{PS}/state.py",
        "        if not self._uninitialised:\n            actions += self._answer_all()",
        "        if self._uninitialised:\n            actions += self._answer_all()",
    ),
    Defect(
        "a version that is no more is served",
        f"{PS}/state.py",
        "        if wait.version < max(self._oldest, self.version - 1):",
        "        if wait.version < max(self._oldest, self.version - 2):",
    ),
    Defect(
        "a version is let go of that may still be asked for",
        f"{PS}/serving.py",
        "            self._store.retire(tick)",
        "            self._store.retire(tick + 1)",
    ),
    Defect(
        "a worker adopts a version of which a server is missing",
        f"{PS}/client_state.py",
        "        if len(server.frames) < num_parcels or not all([each.whole for each in self._servers]):",
        "        if len(server.frames) < num_parcels:",
    ),
    Defect(
        "a slice is computed from a mixture of versions",
        f"{PS}/client_state.py",
        "        if places and self._schedule.trains(self.held)",
        "        if False",
    ),
    Defect(
        "of a mixture, what is of the next version is taken for that of this one",
        f"{PS}/client_state.py",
        "        if message.same and (number, parcel) in self._placed:",
        "        if False:",
    ),
    Defect(
        "a worker is told that it has what it has not",
        f"{PS}/state.py",
        "            same = self._is_same(wait.have, version, parcel)",
        "            same = self._is_same(wait.have + 1, version, parcel)",
    ),
    Defect(
        "servers that are ahead are not asked for an older version",
        f"{PS}/client_state.py",
        "if server.version > oldest]\n",
        "if server.version > oldest + 1]\n",
    ),
    Defect(
        "who is told that a version is gone looks too far ahead",
        f"{PS}/client_state.py",
        "max(self._floor, message.latest - 1)",
        "max(self._floor, message.latest + 1)",
    ),
    Defect(
        "rows of the next version are answered with those of this one",
        f"{PS}/row_reads.py",
        "        if message.version > table.version and not",
        "        if message.version > table.version + 1 and not",
    ),
    # --- orders
    Defect(
        "orders change after they were told",
        f"{PS}/ordering.py",
        "        if version not in self._orders:",
        "        if version not in self._orders or self.wants_cut or self._shares:",
    ),
    Defect(
        "a checkpoint is cut before an evaluation",
        f"{PS}/ordering.py",
        "            may = self._schedule.may_cut(version + 1)",
        "            may = True",
    ),
    Defect(
        "the order to finish is forgotten",
        f"{PS}/state.py",
        "        self.finished = tick.finish or self.version",
        "        self.finished = self.version",
    ),
    Defect(
        "the order of a checkpoint is forgotten by all servers but the first",
        f"{PS}/state.py",
        "        tick.cut |= push.cut",
        "        tick.cut |= push.cut and self._leads",
    ),
    # --- what evaluations decide
    Defect(
        "orders for the next tick do not wait for what an evaluation decides",
        f"{PS}/ordering.py",
        "version > self._decided and self._schedule.evaluates(version - 1)",
        "False",
    ),
    Defect(
        "a checkpoint that follows an evaluation is left out, if there is one under way",
        f"{PS}/ordering.py",
        "or self._unsettled is None or not self._keeps(version)",
        "or True",
    ),
    Defect(
        "what evaluations have decided does not go with the leading server's copies",
        f"{PS}/keeping.py",
        "            self._decisions.learn(message.standing)",
        "            pass",
    ),
    Defect(
        "what evaluations have decided is not written down",
        f"{CORE}/master/saving.py",
        "            standing=facts.standings.at(action.tick),",
        "            standing=None,",
    ),
    # --- snapshots
    Defect(
        "a copy counts as kept with its first parcel",
        f"{PS}/snapshots.py",
        "        if len(self._coming[copy]) == count:",
        "        if len(self._coming[copy]) >= 1:",
    ),
    Defect(
        "all is said to be safe once one is",
        f"{PS}/snapshots.py",
        "        if self._safe < self._row.holding or version is None",
        "        if version is None",
    ),
    Defect(
        "the copy that is safe is forgotten with those before it",
        f"{PS}/snapshots.py",
        "self._forget(copy for copy in self._whole if copy[1] < version)",
        "self._forget(copy for copy in self._whole if copy[1] <= version)",
    ),
    Defect(
        "the last copy is forgotten before the next is safe",
        f"{PS}/snapshots.py",
        "            actions += self._forget((place, old) for old in mine[:-1])",
        "            actions += self._forget((place, old) for old in mine)",
    ),
    Defect(
        "a server that stops in the midst of a version offers it",
        f"{PS}/chunks.py",
        "newest if sound and store and store.is_whole(newest[1]) else None",
        "(newest[0], newest[1] + 1)",
    ),
    Defect(
        "a checkpoint holds the version before",
        f"{PS}/server.py",
        "            snapshot, rows = store.snapshot(action.version), changes(store, step)",
        "            snapshot, rows = store.snapshot(action.version - 1), changes(store, step)",
    ),
    # --- generations and connections
    Defect(
        "a server halts for the generation that it serves",
        f"{PS}/membership.py",
        "return generation > self.generation and",
        "return generation >= self.generation and",
    ),
    Defect(
        "who is early for a generation is forgotten when it begins",
        f"{CORE}/wire/data.py",
        "        for route, hello in early.items():",
        "        for route, hello in list(early.items())[1:]:",
    ),
    Defect(
        "who comes for a generation that is past gets in",
        f"{CORE}/wire/data.py",
        "        if hello.generation < max(1, self.generation):",
        "        if hello.generation < 1:",
    ),
    Defect(
        "the end of an older connection is taken for that of the newer",
        f"{PS}/ways.py",
        "        return self.peers.get(peer.name) == peer and bool(self.peers.pop(peer.name))",
        "        return bool(self.peers.pop(peer.name, None))",
    ),
    Defect(
        "a descriptor that is used again is taken for the older connection's",
        f"{CORE}/wire/router.py",
        "            if late is None or is_newer(route, late):",
        "            if late is None or is_newer(late, route):",
    ),
    Defect(
        "a connection is buried before its last word is read",
        f"{CORE}/wire/router.py",
        "        if self._dying and not readable(self.socket):\n            self._bury()",
        "        self._closed += self._dying\n        self._dying.clear()",
    ),
    Defect(
        "a worker that has lost its servers is not told of them again",
        f"{CORE}/worker/worker.py",
        "        return assignment.generation >= self._present.generation + (self._severed is None)",
        "        return assignment.generation > self._present.generation",
    ),
    Defect(
        "a worker drops its slices for what it goes by already",
        f"{CORE}/worker/worker.py",
        "            self._is_news(message) if isinstance(message, Assignment) else",
        "            isinstance(message, Assignment) or",
    ),
    Defect(
        "the master takes a Ready of another generation",
        f"{CORE}/master/deciding/joining.py",
        "    if member is None or event.generation < run.row.generation:\n        return []\n"
        "    member.heard_s = now_s\n    if event.generation > run.row.generation:",
        "    if member is None:\n        return []\n    member.heard_s = now_s\n"
        "    if event.generation > run.row.generation:",
    ),
    Defect(
        "the master takes what servers of another generation say",
        f"{CORE}/master/deciding/facts.py",
        "        if self.total_ticks is None or event.generation != self.row.generation:",
        "        if self.total_ticks is None:",
    ),
    Defect(
        "the row goes back beyond what is committed",
        f"{CORE}/master/row.py",
        "        if found is not None and found >= (committed_tick or 0):",
        "        if found is not None:",
    ),
    Defect(
        "a row begins with what somebody has, and not with what all have",
        f"{CORE}/master/row.py",
        "    common = set.intersection(*versions.values()) if versions else set()",
        "    common = set.union(*versions.values()) if versions else set()",
    ),
    # --- a master that takes over
    Defect(
        "a new master takes no other number than the one before",
        f"{CORE}/master/connections.py",
        "        self._session = secrets.randbits(SESSION_BITS)",
        "        self._session = 0",
    ),
    Defect(
        "nothing is told again to a new master",
        f"{CORE}/cluster/member.py",
        "        return self._said if before is None else before != beat.incarnation",
        "        return False",
    ),
    Defect(
        "who waits to be admitted does not ask the next master",
        f"{CORE}/worker/life.py",
        "        answer = link.wait_for((Assignment, Quit, Beat))",
        "        answer = link.wait_for((Assignment, Quit))",
    ),
    Defect(
        "a server tells a new master nothing of the parts it has written",
        f"{PS}/server.py",
        "            self._parts.repeat()\n",
        "",
    ),
    Defect(
        "a new master takes it that workers have heard what the last one said",
        f"{CORE}/master/deciding/takeover.py",
        "            member.generation = 0  # what it was told",
        "            member.generation += 0  # what it was told",
    ),
    Defect(
        "a master that goes on gives the name of one who lives to another",
        f"{CORE}/master/deciding/takeover.py",
        '*(number_of(n) + 1 for n in living if "worker" in n)',
        '*(0 for n in living if "worker" in n)',
    ),
    # --- waits that nobody ends
    Defect(
        "what came from the master wakes nobody",
        f"{CORE}/cluster/inbox.py",
        "        self._messages.append(message)\n        self._news.set()",
        "        self._messages.append(message)",
    ),
    Defect(
        "what came with an answer that was waited for is not looked at",
        f"{CORE}/cluster/inbox.py",
        "                if self._messages:\n                    self._news.set()",
        "                self._messages.clear()",
    ),
    Defect(
        "what the storage's thread has done wakes nobody",
        f"{CORE}/storage/background.py",
        "                self._news.append(news)\n                self._wake.set()",
        "                self._news.append(news)",
    ),
    Defect(
        "what the storage refuses is not tried again",
        f"{CORE}/storage/background.py",
        "                if delay_s is None or not is_curable(error):",
        "                if delay_s is not None or not is_curable(error):",
    ),
    Defect(
        "a worker that is told of a record to leave out does not go on",
        f"{CORE}/worker/worker.py",
        "            if position:\n                self._compute_more(position, again)",
        "            if position and not again:\n                self._compute_more(position, again)",
    ),
    Defect(
        "a wait that is due since ever cannot be waited for",
        f"{CORE}/wire/sockets.py",
        "math.ceil(max(0.0, seconds) * 1000)",
        "max(0, math.ceil(seconds * 1000))",
    ),
    Defect(
        "who connects again waits still for what it waited for over the connection before",
        f"{PS}/server.py",
        "            at_work.closed(name)  # whatever it waits for, it will ask for again",
        "            pass",
    ),
    # --- commits
    Defect(
        "servers that began with what turns out to be the last version do not all write it",
        f"{CORE}/master/deciding/checkpoints.py",
        "    if event.last and was_asked_at_start(run, event.version):",
        "    if False:",
    ),
    Defect(
        "copies of servers are made while a checkpoint is written that may be the best",
        f"{PS}/ordering.py",
        "            if self._snapshots is not None and not self._waits_for_best(version):",
        "            if self._snapshots is not None:",
    ),
    Defect(
        "a checkpoint is committed with a part of its parts",
        f"{CORE}/master/commits.py",
        "        if not parts.keys() >= set(holders):",
        "        if not parts:",
    ),
    Defect(
        "a run is over when its last checkpoint is ordered",
        f"{CORE}/master/deciding/checkpoints.py",
        "    return [*notes, CommitAction(event.tick, parts)] if parts else notes",
        "    return [*notes, *committed(run, event.tick)] if parts else notes",
    ),
)
