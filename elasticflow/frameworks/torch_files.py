"""PyTorch programs as files that compute: ``torch.export`` and ONNX, for any number of records at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from elasticflow.errors import ProgramError
from elasticflow.frameworks.base import PREDICTION
from elasticflow.process.new_files import writing
from elasticflow.step.layout import Array


class Predictor(torch.nn.Module):
    """``predict``, or the one module, as a module of its own with all parameters in it."""

    def __init__(
        self, predict: Callable[..., Any] | None, params: Mapping[str, Any], names: Sequence[str]
    ) -> None:
        super().__init__()
        self._predict, self._names = predict, tuple(names)
        self._others = {}
        self._keys = [key for key in params if key != "optimizer"]
        for key in self._keys:
            value = params[key]
            if isinstance(value, torch.Tensor):
                self.register_buffer(f"of_{key}", value.detach())
            elif isinstance(value, torch.nn.Module):
                self.add_module(f"of_{key}", value)
            else:
                self._others[key] = value

    def forward(self, *columns: torch.Tensor) -> Any:
        """What it predicts for these records."""
        params = {
            key: self._others[key] if key in self._others else getattr(self, f"of_{key}")
            for key in self._keys
        }
        if self._predict is not None:
            return self._predict(**dict(zip(self._names, columns, strict=True)), params=params)
        [module] = [value for value in params.values() if isinstance(value, torch.nn.Module)]
        return module(*columns)


def write(
    path: Path,
    ending: str,
    predict: Callable[..., Any] | None,
    params: Mapping[str, Any],
    names: Sequence[str],
    columns: Sequence[Array],
) -> None:
    """columns: of two records at least, which say the shapes of one. Raises ProgramError."""
    predictor = Predictor(predict, params, names).eval()
    for tensor in (*predictor.parameters(), *predictor.buffers()):
        tensor.data = tensor.data.clone()  # they were views of one vector
    arguments = tuple(torch.from_numpy(column) for column in columns)
    records = torch.export.Dim("records")
    shapes = (tuple({0: records} for _ in arguments),)
    with torch.no_grad():
        exported = torch.export.export(predictor, arguments, dynamic_shapes=shapes)
        if ending == ".pt2":
            with writing(path) as file:
                torch.export.save(exported, file)
            return
        try:
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ProgramError(
                f"ONNX needs the packages onnx and onnxscript, and {error.name} is not there: "
                "pip install 'elasticflow-trainer[onnx]'."
            ) from error
        outputs = output_names(predictor(*arguments), names)
        torch.onnx.export(
            exported, f=str(path), input_names=list(names), output_names=outputs, external_data=False
        )


def output_names(predicted: object, names: Sequence[str]) -> list[str] | None:
    """What ONNX is to call what was predicted, as ``predict`` names it; None: what PyTorch calls it.

    names: of what goes in; in a graph no two may be the same.
    """
    if isinstance(predicted, torch.Tensor):
        found = [PREDICTION]
    elif isinstance(predicted, Mapping) and all(
        isinstance(each, torch.Tensor) for each in predicted.values()
    ):
        found = list(map(str, predicted))
    else:
        return None
    return None if {*found} & {*names} else found
