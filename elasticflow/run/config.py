"""The settings of a run. Every default lives here, once.

Command line beats file beats default. A file is YAML with the names below.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Iterable, Mapping, Set
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from elasticflow.adapters.scripts import script_settings
from elasticflow.errors import ConfigError
from elasticflow.process.decoding import converted
from elasticflow.process.stamps import FORMATS
from elasticflow.run import dates, tracks
from elasticflow.storage import urls

MOST = 2**31 - 1
"""Of what is counted; a run of more would end after all who have begun it."""
MOST_SLICES, MOST_PROCESSES = 1 << 16, 1 << 12
LONGEST_S = 1e9
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
Processes = Annotated[int, Meta(ge=1, le=MOST_PROCESSES)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
COMPRESSIONS = ("none", "bf16", "top-k")
TOP_K = 0.01
DEVICES = ("auto", "cpu", "cuda", "delayed")
"""``delayed`` is for tests: see ``elasticflow.frameworks.devices``."""
PARAMETER_SERVER, ALL_REDUCE, AUTO = "parameter_server", "all_reduce", "auto"
STRATEGIES = (PARAMETER_SERVER, ALL_REDUCE, AUTO)
MOST_PLACES, USUAL_PLACES = 32, 8
"""A worker talks to all places, however many workers there are."""
PLACES = ("data", "run_dir", "checkpoint_dir", "init_from")
"""Settings that may be URLs."""
DATED = ("data", "run_dir")
"""Settings that may hold dates in braces, see ``elasticflow.run.dates``."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one run; ``conf/local.yaml`` shows each with a comment."""

    program: str = ""
    program_sha256: str = ""
    """Once a run has begun: of its copy, see ``elasticflow.program.copy``."""
    run_dir: str = ""
    backend: str = "local"
    strategy: str = PARAMETER_SERVER
    strategy_why: str = ""
    """Once ``auto`` has chosen one: why."""

    workers: str = "2"
    servers: Processes = 1
    places: Annotated[int, Meta(ge=0, le=MOST_PLACES)] = 0
    peers: Annotated[int, Meta(ge=2, le=MOST_PROCESSES)] = 32
    least_gain: Annotated[float, Meta(ge=0, le=1)] = 0.1
    threads: Processes = 1
    server_threads: Processes = 1
    read_processes: Annotated[int, Meta(ge=0, le=64)] = 0
    device: str = "auto"
    graphs: bool = False
    audit: Count = 0

    epochs: Positive = 10
    max_steps: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    max_time: str = ""
    evaluate_every: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    batch_size: Positive = 64
    slices: Annotated[int, Meta(ge=0, le=MOST_SLICES)] = 0
    measure_slices: bool = False
    mode: str = "sync"
    staleness: Annotated[int, Meta(ge=0, le=MOST_SLICES - 1)] = 0
    staleness_rule: str = "inverse"
    drop_last: bool = False
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    data: str = ""
    args: dict[str, Any] = {}
    """Of the program, by name: see ``elasticflow.program.arguments``."""
    init_from: str = ""
    """Where a new run's first values come from: see ``elasticflow.worker.warm``."""
    init_map: str = ""
    init_optimizer: bool = False

    checkpoint_every: str = "60s"
    checkpoint_dir: str = ""
    """Where checkpoints lie in a folder of the run's name, if not in its own: see ``checkpoint.place``."""
    checkpoint_place: str = ""
    """Once a run has begun that has a ``checkpoint_dir``: that folder."""
    keep_checkpoints: Positive = 3
    max_quarantined: Count = 0
    force_quarantine: bool = False
    on_nan: str = "stop"
    max_skipped_steps: Count = 100
    max_failures: Count = 3
    fingerprint: str = "strict"
    snapshot_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] = 1.0
    storage_patience_s: PositiveSeconds = 300.0
    client_gone: str = "continue"
    share: str = "nobody"

    deadline: str = ""
    """Once a run has begun: a moment with its offset."""
    time_limit: str = ""
    date: str = ""
    """What {today} and {now} are; once a run has begun that names them: what they were."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    encrypt_data: bool = False
    authenticate_data: bool = True
    shared_memory: bool = True
    overlap: bool = True
    compression: str = "none"
    top_k: Annotated[float, Meta(gt=0, le=1)] = TOP_K
    heartbeat_s: PositiveSeconds = 0.5
    suspect_s: PositiveSeconds = 2.0
    lost_s: PositiveSeconds = 60.0
    start_s: PositiveSeconds = 900.0
    stall_s: PositiveSeconds = 600.0
    timeline: bool = False
    log_format: str = ""
    """One of ``elasticflow.process.stamps.FORMATS``; "": as the environment of each process says."""
    track: list[str] = []
    """Who draws the run's curves, see ``elasticflow.run.tracks``."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    metrics_address: str = "127.0.0.1"
    metrics_token_file: str = ""

    slurm: dict[str, Any] = {}
    """Settings of the SLURM backend, which knows and checks them."""
    yarn: dict[str, Any] = {}
    """Settings of the YARN backend, likewise."""
    kubernetes: dict[str, Any] = {}
    """Settings of the Kubernetes backend, likewise."""

    def __post_init__(self) -> None:
        most = 1 << (self.batch_size.bit_length() - 1)
        if self.slices & (self.slices - 1):
            raise ConfigError(f"slices: {self.slices} is not a power of two; use 1, 2, 4, 8, 16, ...")
        self._check_mode()
        if not self.init_from and (self.init_map or self.init_optimizer):
            name = "init_map" if self.init_map else "init_optimizer"
            raise ConfigError(
                f"{name}: is for a run that begins with the weights of another: name it by init_from."
            )
        if self.slices > most:
            raise ConfigError(
                f"slices: {self.slices} slices cannot share a batch of {self.batch_size} records; "
                f"use at most {most} slices, or a larger batch_size."
            )
        low, high = self.worker_range
        if not 1 <= low <= high:
            raise ConfigError(f"workers: {self.workers!r} must be N or MIN..MAX with 1 <= MIN <= MAX.")
        if high > self.num_slices and self.asynchronous:
            raise ConfigError(
                f"workers: {high} workers cannot be at work at once with staleness {self.staleness}; "
                f"ask for at most {self.num_slices} workers, or for more staleness "
                f"(--staleness {(1 << (high - 1).bit_length()) - 1})."
            )
        if high > self.num_slices:
            raise ConfigError(
                f"workers: {high} workers cannot share {self.num_slices} slices of a batch; "
                f"ask for at most {self.num_slices} workers, or for more slices (--slices)."
            )
        if self.fingerprint not in ("strict", "warn"):
            raise ConfigError(f"fingerprint: {self.fingerprint!r}; allowed are strict and warn.")
        if self.device not in DEVICES:
            raise ConfigError(f"device: {self.device!r}; allowed are auto, cpu and cuda.")
        if self.on_nan not in ("stop", "skip"):
            raise ConfigError(f"on_nan: {self.on_nan!r}; allowed are stop and skip.")
        if self.log_format not in ("", *FORMATS):
            raise ConfigError(f"log_format: {self.log_format!r}; allowed are text and json.")
        if self.share not in ("nobody", "group"):
            raise ConfigError(f"share: {self.share!r}; allowed are nobody and group.")
        if self.client_gone not in ("continue", "stop"):
            raise ConfigError(f"client_gone: {self.client_gone!r}; allowed are continue and stop.")
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression: {self.compression!r}; allowed are {', '.join(COMPRESSIONS)}.")
        if self.top_k != TOP_K and self.compression != "top-k":
            raise ConfigError(f"top_k: {self.top_k} is for compression: top-k, not {self.compression}.")
        if self.compression != "none" and self.asynchronous:
            raise ConfigError(f"compression: {self.compression} is for mode: sync; use none in mode: async.")
        if not self.heartbeat_s < self.suspect_s:
            raise ConfigError(
                f"suspect_s: {self.suspect_s} must be more than heartbeat_s, {self.heartbeat_s}."
            )
        if not self.suspect_s < self.lost_s:
            raise ConfigError(f"lost_s: {self.lost_s} must be more than suspect_s, {self.suspect_s}.")
        self.checkpoint_interval  # noqa: B018  (raises where it cannot be read)
        for name in PLACES:
            try:
                urls.check(getattr(self, name))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error
        tracks.check_names(self.track)
        if not self.metrics_port and (self.metrics_address != "127.0.0.1" or self.metrics_token_file):
            name = "metrics_token_file" if self.metrics_token_file else "metrics_address"
            raise ConfigError(f"{name}: is of no use without metrics_port; name one, such as 9477.")
        self.time_limit_s  # noqa: B018
        self.max_time_s  # noqa: B018

    def _check_mode(self) -> None:
        if self.mode not in ("sync", "async"):
            raise ConfigError(f"mode: {self.mode!r}; allowed are sync and async.")
        self._check_strategy()
        if self.staleness_rule not in ("none", "inverse"):
            raise ConfigError(f"staleness_rule: {self.staleness_rule!r}; allowed are none and inverse.")
        if self.staleness and not self.asynchronous:
            raise ConfigError(
                f"staleness: {self.staleness} is for mode: async; in mode: sync nothing is stale."
            )
        if self.slices and self.asynchronous:
            raise ConfigError(
                f"slices: {self.slices} is for mode: sync; in mode: async each batch is one slice, and "
                "staleness says how many may be computed at once."
            )
        if self.audit and self.asynchronous:
            raise ConfigError(
                f"audit: {self.audit} is for mode: sync; in mode: async what a slice gives depends on when."
            )
        if self.audit and self.compression == "top-k":
            raise ConfigError(
                f"audit: {self.audit} is not for compression: top-k; a step made once more is another there."
            )
        if self.audit and self.fingerprint != "strict":
            raise ConfigError(
                f"audit: {self.audit} wants fingerprint: strict; with warn, workers may differ rightly."
            )
        if self.measure_slices and self.asynchronous:
            raise ConfigError("measure_slices: is for mode: sync; in mode: async each batch is one slice.")

    def _check_strategy(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy: {self.strategy!r}; allowed are {', '.join(STRATEGIES)}.")
        if self.strategy == AUTO:
            return
        if not self.all_reduce:
            if self.places:
                raise ConfigError(
                    f"places: {self.places} is for strategy: all_reduce, where workers carry them; with "
                    "parameter servers, leave it out (--places 0), and say how many by servers."
                )
            return
        if self.servers > 1:
            raise ConfigError(
                f"servers: {self.servers} is for strategy: parameter_server; with all_reduce the workers "
                "carry what servers would hold: leave it out (--servers 1), and see places."
            )
        if self.asynchronous:
            raise ConfigError("strategy: all_reduce is for mode: sync; use parameter_server in mode: async.")

    @property
    def all_reduce(self) -> bool:
        """Whether workers carry the parameter servers, and no others are started."""
        return self.strategy == ALL_REDUCE

    @property
    def undecided(self) -> bool:
        """Whether it is not known yet who holds the model: that the program decides, see ``choosing``."""
        return self.strategy == AUTO and not self.asynchronous

    @property
    def num_servers(self) -> int:
        """So many a backend is asked for."""
        return 0 if self.all_reduce or self.undecided else self.servers

    @property
    def num_places(self) -> int:
        """So many parameter servers share the model, at most: never a matter of bits."""
        if not self.all_reduce:
            return self.servers
        return self.places or min(self.worker_range[1], USUAL_PLACES)

    @property
    def asynchronous(self) -> bool:
        """Whether each batch is applied as soon as it comes, to what there is by then."""
        return self.mode == "async"

    @property
    def num_slices(self) -> int:
        """Slices of a step: as set, or 8, or as many as a smaller batch allows, or as the first worker has
        found (``fixed``).

        Never a function of the number of workers: the slices decide the model's bits. Asynchronously, the
        batches of a step: while one is computed all others can be applied, so the largest power of two of
        which all but one are within ``staleness``.
        """
        if self.asynchronous:
            return 1 << ((self.staleness + 1).bit_length() - 1)
        return self.slices or min(8, 1 << (self.batch_size.bit_length() - 1))

    @property
    def free_slices(self) -> bool:
        """Whether the first worker may choose another number of slices than ``num_slices``."""
        return not self.slices and not self.asynchronous

    def chosen(self, strategy: str, why: str) -> Config:
        """The same, once ``auto`` has chosen."""
        places, servers = (self.places, 1) if strategy == ALL_REDUCE else (0, self.servers)
        return msgspec.structs.replace(
            self, strategy=strategy, strategy_why=why, places=places, servers=servers
        )

    def fixed(self, num_slices: int) -> Config:
        """The same, with a number of slices that is chosen once and for all."""
        return self if self.asynchronous else msgspec.structs.replace(self, slices=num_slices)

    @property
    def step_records(self) -> int:
        """Records of a step."""
        return self.batch_size * self.num_slices if self.asynchronous else self.batch_size

    @property
    def worker_range(self) -> tuple[int, int]:
        """Fewest and most workers."""
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", self.workers.strip())
        if not found:
            raise ConfigError(f"workers: {self.workers!r} is neither N nor MIN..MAX, such as 2 or 1..4.")
        low = int(found[1])
        return low, int(found[2] or low)

    @property
    def checkpoint_interval(self) -> tuple[int | None, float | None]:
        """(steps, None) or (None, seconds) between two checkpoints."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|steps?)?", self.checkpoint_every.strip())
        if not found or float(found[1]) <= 0:
            raise ConfigError(
                f"checkpoint_every: {self.checkpoint_every!r} is neither steps nor a time; "
                "write 500 (steps), 30s, 5m or 1h."
            )
        unit = {"s": 1, "m": 60, "h": 3600}.get(found[2] or "")
        if float(found[1]) * (unit or 1) > (LONGEST_S if unit else MOST):
            raise ConfigError(
                f"checkpoint_every: {self.checkpoint_every!r} is more than can be meant: at most {MOST} "
                f"steps, or {LONGEST_S:.0f} s."
            )
        if unit:
            return None, float(found[1]) * unit
        if "." in found[1]:
            raise ConfigError(f"checkpoint_every: {found[1]} is not a whole number of steps.")
        return int(found[1]), None

    @property
    def time_limit_s(self) -> float | None:
        """How long a run may take from its start; None: as long as it wants."""
        return dates.length_s("time_limit", self.time_limit) if self.time_limit.strip() else None

    @property
    def max_time_s(self) -> float | None:
        """How long a run trains from its start, and is done then; None: until its last step."""
        return dates.length_s("max_time", self.max_time) if self.max_time.strip() else None

    @property
    def deadline_at(self) -> float | None:
        """When the run should be done, since 1970, once it has begun; None: there is no such moment."""
        return datetime.fromisoformat(self.deadline).timestamp() if self.deadline else None


def differences(config: Config) -> dict[str, Any]:
    """The settings that are not the defaults, as JSON has them: all that has to be written down."""
    usual, values = msgspec.to_builtins(Config()), msgspec.to_builtins(config)
    return {name: value for name, value in values.items() if value != usual[name]}


def _unknown(names: Iterable[str], where: str) -> ConfigError:
    known = sorted(Config.__struct_fields__)
    parts = []
    for name in sorted(names):
        close = difflib.get_close_matches(name, known, 1)
        parts.append(f"{name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    return ConfigError(f"{where}: unknown key {', '.join(parts)}. Known keys: {', '.join(known)}.")


def check_names(names: Iterable[str], where: str = "settings") -> None:
    """Raises ConfigError if one is no setting, with one that may be meant."""
    if unknown := set(names) - set(Config.__struct_fields__):
        raise _unknown(unknown, where)


def read_file(path: str) -> dict[str, Any]:
    """The settings in a YAML file, unchecked but for their names, which may be written with dashes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = yaml.safe_load(text) or {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: is not YAML: {error.problem}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold lines of 'key: value', but holds a {type(values).__name__}.")
    named = {str(name).replace("-", "_"): value for name, value in values.items()}
    check_names(named, path)
    return {name: value for name, value in named.items() if value is not None}


def make(
    file: str | None,
    options: dict[str, Any],
    before: dict[str, Any] | None = None,
    *,
    at_s: float | None = None,
) -> Config:
    """The settings ``before``, under those of the file, if any, under the options that are not None.

    before: of the run that goes on, None for a new one: of a plain script's text what it says comes first.
    What it had found out of its file's ``deadline`` and
    ``date`` stays so, since the file was written for the beginning; options may change it.
    at_s: the time, since 1970, for deadlines and dates.
    """
    given = {name: value for name, value in options.items() if value is not None}
    in_file = read_file(file) if file else {}
    for name in ("deadline", "date"):
        if before and before.get(name):
            in_file.pop(name, None)
    if before and before.get("strategy_why") and in_file.get("strategy") == AUTO:
        in_file.pop("strategy")  # what it has chosen stays, unless an option asks anew
    values = {**(before or {}), **in_file, **given}
    if before is None and isinstance(values.get("program"), str):
        values = {**script_settings(values["program"], values.keys()), **values}
    if "strategy" in in_file.keys() | given.keys():
        values.pop("strategy_why", None)
    if isinstance(given.get("args"), dict):
        values["args"] = {
            **((before or {}).get("args") or {}),
            **(in_file.get("args") or {}),
            **given["args"],
        }
    if isinstance(values.get("track"), str):
        values["track"] = [each.strip() for each in values["track"].split(",") if each.strip()]
    for name in ("workers", "checkpoint_every", "time_limit", "max_time"):  # YAML reads a plain number as one
        if isinstance(values.get(name), int) and not isinstance(values[name], bool):
            values[name] = str(values[name])
    for name in ("deadline", "date"):
        if isinstance(values.get(name), date):  # and this as a date, or a moment
            values[name] = values[name].isoformat()
        elif isinstance(values.get(name), int):
            raise ConfigError(
                f"{file}: {name}: {values[name]!r} is a number; write it in quotes: YAML reads 22:00 as 1320."
            )
    name = ""
    try:
        check_texts(values)
        _check_args(values)
        chosen = converted(values, Config)
        at_s = time.time() if at_s is None else at_s
        return _dated(chosen, in_file.keys() | given.keys(), at_s, goes_on=before is not None)
    except msgspec.ValidationError as error:
        name, text = _explained(error, values)
        cause: Exception = error
    except ConfigError as error:
        name, text = str(error).partition(":")[0], str(error)
        cause = error
    where = f"{file}: " if name in in_file and name not in given else ""
    raise ConfigError(f"{where}{text}") from cause


def _dated(chosen: Config, fresh: Set[str], at_s: float, *, goes_on: bool) -> Config:
    """Says once and for all which moments and dates are meant by the settings that are fresh.

    A run that goes on may be late already. Raises ConfigError if a new one would be.
    """
    found: dict[str, str] = {}
    day_s = dates.day_s(chosen.date, at_s)
    for name in DATED:
        text = getattr(chosen, name)
        if name in fresh and dates.has_fields(text):
            found[name] = dates.fill(name, text, day_s)
    if found and not chosen.date:
        found["date"] = dates.written(datetime.fromtimestamp(day_s).astimezone())
    if "deadline" in fresh and chosen.deadline:
        due = dates.moment("deadline", chosen.deadline, at_s)
        if due.timestamp() <= at_s and not goes_on:
            late = dates.span(at_s - due.timestamp())
            raise ConfigError(
                f"deadline: {chosen.deadline!r} is over since {late}; "
                "name a moment to come, such as 06:00 (the next one) or +8h."
            )
        found["deadline"] = dates.written(due)
    return msgspec.structs.replace(chosen, **found)


def check_texts(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for a text that cannot be written into a file of settings."""
    for name, value in values.items():
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(
                    f"{name}: {value!r} is not UTF-8, and could not be told to other processes; give the "
                    "file or folder another name."
                ) from None


def _check_args(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for numbers that JSON cannot write: workers would read null in their place."""
    args = values.get("args")
    for name, value in args.items() if isinstance(args, dict) else ():
        try:
            json.dumps(value, allow_nan=False, default=str)
        except ValueError:
            raise ConfigError(
                f"args: {name}: {value} is not allowed: NaN and infinite numbers cannot be told to other "
                f"processes; leave {name} out, or write it as a text, in quotes."
            ) from None


def _explained(error: msgspec.ValidationError, values: dict[str, Any]) -> tuple[str, str]:
    """The setting that is wrong, and a text that names it, what was found and what is allowed."""
    if isinstance(error.__cause__, ConfigError):
        return str(error.__cause__).partition(":")[0], str(error.__cause__)
    text, _, name = str(error).rstrip("`").partition(" - at `$.")
    for kind, word in _KINDS.items():
        text = text.replace(f"`{kind}`", word)
    return name, f"{name}: {values.get(name)!r} is not allowed: {text[0].lower()}{text[1:]}."


_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
