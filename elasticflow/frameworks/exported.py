"""What a program computes for others, as a file that runs without ElasticFlow: its ``predict()``, or its
module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elasticflow.data import Source
from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import Replica
from elasticflow.program.loading import Program, arguments_of_predict
from elasticflow.step.layout import PASSING, Array


class Exported:
    """A program with the weights of a checkpoint.

    sample: a few records, as arguments of ``forward``. source: theirs. arrays: the weights, by name.
    """

    def __init__(
        self,
        program: Program,
        replica: Replica,
        sample: Mapping[str, Array],
        source: Source,
        arrays: Mapping[str, Array],
    ) -> None:
        if replica.tables:
            raise ProgramError(
                f"{program.path}: has embedding tables, whose rows lie on the servers, and no file of a "
                "framework's has room for; export to .npz, .safetensors or .h5."
            )
        for entry in replica.layout.entries:
            if entry.rule not in PASSING:
                [mine] = replica.state.tensors([entry])
                np.copyto(mine, arrays[entry.name])
        frozen = {name: arrays[name] for name in replica.frozen() if name in arrays}
        replica.put_frozen(frozen)
        replica.refresh()
        self.framework = replica.framework
        self._program, self._path, self._params = program, program.path, dict(replica.params)
        self._predict = program.predict
        self._sample = sample

    def write(self, path: Path, ending: str) -> None:
        """Raises ProgramError for what the framework cannot export."""
        names = self._arguments(self._function)
        columns = [np.array(self._sample[name]) for name in names]
        try:
            if self.framework == "torch":
                from elasticflow.frameworks.torch_files import write

                write(path, ending, self._predict, self._params, names, columns)
            else:
                from elasticflow.frameworks.keras_files import write as write_with_keras

                write_with_keras(path, ending, self._predict, self._params, names, columns)
        except (ProgramError, OSError):
            raise
        except Exception as error:  # whatever the exporters of a framework raise
            first = (str(error).strip().splitlines() or [""])[0]
            raise ProgramError(
                f"{self._path}: {self.framework} cannot export it to {ending}: {type(error).__name__}: "
                f"{first}"
            ) from error

    @property
    def _function(self) -> Any:
        """What takes the columns."""
        if self._predict is not None:
            return self._predict
        modules = [value for key, value in self._params.items() if key != "optimizer" and callable(value)]
        if len(modules) != 1:
            raise ProgramError(
                f"{self._path}: what is it to compute? Define predict(...), with columns of the data and "
                f"params as arguments; without it there must be one module in model(), and there are "
                f"{len(modules)}."
            )
        return modules[0].forward if self.framework == "torch" else modules[0].call

    def _arguments(self, function: Any) -> Sequence[str]:
        """Of ``predict`` by name; of a module, as many columns as it takes, the first ones."""
        parameters = inspect.signature(function).parameters.values()
        plain = [
            p
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "params"
        ]
        if self._predict is None:
            needed = max(1, len([p for p in plain if p.default is p.empty]))
            return list(self._sample)[:needed]
        return arguments_of_predict(self._program, list(self._sample))
