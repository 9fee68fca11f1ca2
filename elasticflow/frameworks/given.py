"""Optimizers of PyTorch and Keras, as ``model()`` may name them: what of ours they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from glob import escape
from typing import Any, NoReturn

from elasticflow import api
from elasticflow.errors import ProgramError
from elasticflow.training.grouping import Groups

_OURS: dict[str, type[api._Optimizer]] = {name: getattr(api, name) for name in api.OPTIMIZERS}
_NAMES_OF_KERAS = {"Nadam": "NAdam", "Lamb": "LAMB"}
"""Of optimizers that are written otherwise there."""
_SETTINGS_OF_KERAS = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "clipvalue": "clip_value",
    "global_clipnorm": "clip_norm",
    "l1_regularization_strength": "l1",
}
_NOT_OF_KERAS = {
    "clipnorm": "clips by the norm of each variable; name global_clipnorm, of all together",
    "ema_overwrite_frequency": "makes parameters of their averages; leave it out, and export the averages",
    "loss_scale_factor": "scales the cost; compute in bfloat16, which needs none of that",
    "gradient_accumulation_steps": "adds up steps; take a larger batch_size, which slices make fit",
    "l2_shrinkage_regularization_strength": "is not in ef.Ftrl",
}


def optimizer_of(value: object, names: Mapping[int, str]) -> Groups | None:
    """``value`` as one of ours; None if it is of neither framework. Raises ProgramError with the reason.

    names: of tensors, by their identity.
    """
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if torch and isinstance(value, torch.optim.Optimizer):
        return _of_torch(value, names)
    if keras and isinstance(value, keras.optimizers.Optimizer):
        return Groups(_of_keras(value), {})
    return None


def trained_by(value: object) -> set[int] | None:
    """Identities of the tensors that an optimizer of PyTorch was given; None: it is no such one."""
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.optim.Optimizer):
        return {id(tensor) for group in value.param_groups for tensor in group["params"]}
    return None


def _refuse(value: object, reason: str) -> NoReturn:
    home = type(value).__module__.partition(".")[0]
    raise ProgramError(f"model()['optimizer'] is {home}'s {type(value).__name__}: {reason}.")


def _kind_of(value: object, package: str, name: str) -> type[api._Optimizer]:
    inside = type(value).__module__.partition(".")[0] == package
    if not inside or name not in _OURS:
        reason = api.OTHERS.get(name if inside else "", "updates run on the servers, which do not know it")
        _refuse(value, f"{reason}. Name one of {', '.join(_OURS)}")
    return _OURS[name]


def _of_torch(value: Any, names: Mapping[int, str]) -> Groups:
    kind = _kind_of(value, "torch", type(value).__name__)
    made = [_made(kind, group) for group in value.param_groups]
    return Groups(
        made[0],
        {
            escape(names[id(tensor)]): optimizer
            for optimizer, group in zip(made, value.param_groups, strict=True)
            for tensor in group["params"]
            if optimizer != made[0] and id(tensor) in names
        },
    )


def _made(kind: type[api._Optimizer], settings: Mapping[str, Any]) -> api.Optimizer:
    """From a group of torch's: how it computes, such as ``foreach``, has no say here."""
    if kind is api.Adam and settings.get("decoupled_weight_decay"):
        kind = api.AdamW
    fields = {name: settings[name] for name in kind.__struct_fields__ if name in settings}
    made: api.Optimizer = kind(**{name: _plain(found) for name, found in fields.items()})  # type: ignore[assignment]
    return made


def _plain(value: Any) -> Any:
    """A number where torch may have a tensor."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value


def _of_keras(value: Any) -> api.Optimizer:
    name = type(value).__name__
    kind, config = _kind_of(value, "keras", _NAMES_OF_KERAS.get(name, name)), value.get_config()
    if not isinstance(config["learning_rate"], (int, float)):
        _refuse(value, "its schedule has to be a function of the program, learning_rate(step, epoch)")
    for setting, reason in _NOT_OF_KERAS.items():
        if config.get(setting):
            _refuse(value, f"{setting}={config[setting]!r} {reason}")
    if any(getattr(value, f"_exclude_from_weight_decay_{each}", ()) for each in ("names", "ids")):
        _refuse(value, "exclude_from_weight_decay is not known here; name groups of parameters in ef.Groups")
    if kind is api.LAMB and config["weight_decay"]:
        _refuse(value, "its weight_decay is no part of its norms; name ef.LAMB, where it is, as in the paper")
    if kind is api.Ftrl and (config["learning_rate_power"] != -0.5 or config["weight_decay"]):
        _refuse(value, "ef.Ftrl is that with learning_rate_power=-0.5 and without weight_decay")
    config = {_SETTINGS_OF_KERAS.get(setting, setting): found for setting, found in config.items()}
    config |= {"form": "keras", "weight_decay": config["weight_decay"] or 0.0}
    config["nesterov"] = bool(config.get("nesterov") and config["momentum"])
    if "beta_1" in config:
        config["betas"] = config["beta_1"], config["beta_2"]
    if config["use_ema"]:
        config["ema"] = config["ema_momentum"]
    if kind is api.RMSprop:
        config["alpha"] = config["rho"]
    elif kind is api.NAdam:
        config["momentum_decay"] = 1.0
    elif kind is api.Ftrl:
        config["weight_decay"] = 2 * config["l2_regularization_strength"]
    return _made(kind, config)
