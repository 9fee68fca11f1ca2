"""``Trainer.fit`` of PyTorch Lightning in a plain script, as a program: see docs/lightning.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elasticflow.adapters.torch_fits import LoaderRecords, Rates, clipped, untouched
from elasticflow.errors import ProgramError
from elasticflow.training import lr
from elasticflow.training.standing import early_stopping

USUAL = {
    "fast_dev_run": (False, "say --max-steps 1"),
    "accumulate_grad_batches": (1, "take a larger batch, which slices make fit"),
    "check_val_every_n_epoch": (1, "say --evaluate-every STEPS"),
    "val_check_interval": (1.0, "say --evaluate-every STEPS"),
    "limit_train_batches": (1.0, "say --max-steps"),
    "limit_val_batches": (1.0, "give less to validate with"),
    "overfit_batches": (0.0, "give less to train with"),
    "reload_dataloaders_every_n_epochs": (0, "records have to follow from their numbers"),
    "precision": ("32-true", "compute in bfloat16 with torch.autocast inside training_step()"),
}
"""Settings of a Trainer that can be nothing else, and what to do instead."""
OWN = (
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad",
    "on_after_backward", "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer",
    "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_start", "on_train_epoch_start",
    "transfer_batch_to_device",
)  # fmt: skip
"""Methods that would change what is trained, and are not called here."""
LEFT_OUT = ("Checkpoint", "Timer", "ProgressBar", "ModelSummary", "LearningRateMonitor", "DeviceStatsMonitor")


def check_library(lightning: Any) -> None:
    """Any will do."""


@contextmanager
def watched(lightning: Any) -> Iterator[None]:
    """Nothing is noted beforehand."""
    yield


def program_of(trainer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a program would have defined. Raises ProgramError for what cannot be trained here."""
    module = given["model"]
    _check(trainer, module, given)
    train, test = _loaders(module, given)
    batches = LoaderRecords("the loader to train with", train)
    data: dict[str, Any] = {"train": batches.source}
    if test is not None:
        data["test"] = LoaderRecords("the loader to validate with", test).source
    logged: dict[str, Any] = {}
    module.log = lambda name, value, *args, **kwargs: logged.__setitem__(name, value)
    optimizer, rate = _optimizer(module)
    by_norm = (trainer.gradient_clip_algorithm or "norm") == "norm"
    clip = trainer.gradient_clip_val
    clipped(optimizer, clip if by_norm else None, None if by_norm else clip)
    found: dict[str, Any] = {
        "model": lambda: {"model": module, "optimizer": optimizer},
        "data": lambda: dict(data),
        "forward": _forward(module, batches),
    }
    if test is not None and _is_own(module, "validation_step"):
        found["metrics"] = _metrics(module, batches, logged)
    if rate is not None:
        found["learning_rate"] = rate
    for callback in trainer.callbacks:
        found |= _of_callback(callback, test is not None)
    module.__class__ = _without_trainer(type(module))
    return found


def _without_trainer(kind: type) -> type:
    """The same class, in which nobody is told 0 for what only a Trainer knows."""

    def unknown(name: str) -> property:
        def read(module: Any) -> Any:
            raise ProgramError(
                f"{kind.__name__}: self.{name} is not known here: what a slice gives follows from its "
                "records and the parameters, whoever computes it. See docs/lightning.md."
            )

        return property(read)

    own = {name: unknown(name) for name in ("current_epoch", "global_step")}
    return type(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _forward(module: Any, batches: LoaderRecords) -> Callable[..., Any]:
    places = len(inspect.signature(module.training_step).parameters)

    def forward(*, params: Any, **columns: Any) -> Any:
        told = params["model"].training_step(*(batches.batch(columns), 0)[:places])
        cost = told.get("loss") if isinstance(told, Mapping) else told
        if cost is None:
            raise ProgramError("training_step() returned no loss; it must, for all records.")
        _forget(module)
        return cost

    return forward


def _metrics(module: Any, batches: LoaderRecords, logged: dict[str, Any]) -> Callable[..., Any]:
    places = len(inspect.signature(module.validation_step).parameters)

    def metrics(*, params: Any, **columns: Any) -> dict[str, Any]:
        logged.clear()
        params["model"].validation_step(*(batches.batch(columns), 0)[:places])
        return dict(logged)

    return metrics


def _forget(module: Any) -> None:
    """Objects of torchmetrics that training_step() has updated: nobody asks them."""
    for each in module.modules():
        if hasattr(each, "_defaults") and callable(getattr(each, "reset", None)):
            each.reset()


def _is_own(module: Any, name: str) -> bool:
    base = next(each for each in type(module).__mro__ if each.__name__ == "LightningModule")
    return getattr(type(module), name, None) is not getattr(base, name, None)


def _check(trainer: Any, module: Any, given: Mapping[str, Any]) -> None:
    if given.get("ckpt_path") is not None:
        raise ProgramError(
            "fit(): ckpt_path is not known here; a run goes on by --resume, or --init-from FILE."
        )
    for name, (usual, advice) in USUAL.items():
        value = getattr(trainer, name, usual)
        # Of batches a whole 1 is one, and 1.0 all of them.
        if value != usual or isinstance(usual, float) and usual and not isinstance(value, float):
            raise ProgramError(
                f"Trainer: {name}={value!r} is not {usual!r}, which is all that is known here: {advice}."
            )
    if not module.automatic_optimization:
        raise ProgramError(
            f"{type(module).__name__}: automatic_optimization is off; a loop of its own is loop(session) "
            "here, see "
            "docs/session.md."
        )
    if own := [name for name in OWN if _is_own(module, name)]:
        raise ProgramError(
            f"{type(module).__name__} has a {own[0]}() of its own, which is not called here: do it in "
            "training_step(), or define loop(session), see docs/session.md."
        )


def _loaders(module: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """To train with, and to validate with; None: there is none of these."""
    train, test, source = (
        given.get("train_dataloaders"),
        given.get("val_dataloaders"),
        given.get("datamodule"),
    )
    if source is None and hasattr(train, "train_dataloader"):
        train, source = None, train
    if source is not None:
        source.prepare_data()
        source.setup("fit")
    owner = module if source is None else source
    train = owner.train_dataloader() if train is None else train
    if test is None and _has_loader(owner):
        test = owner.val_dataloader()
    if isinstance(test, (tuple, list)):
        if len(test) > 1:
            raise ProgramError(f"fit(): {len(test)} loaders to validate with; one is known here.")
        test = test[0] if test else None
    return train, test


def _has_loader(owner: Any) -> bool:
    """Whether it has a val_dataloader() of its own: that of the base classes raises."""
    return not type(owner).val_dataloader.__module__.startswith(("lightning.", "pytorch_lightning."))


def _optimizer(module: Any) -> tuple[Any, Callable[..., float] | None]:
    """What configure_optimizers() gives, and its learning rate, if it has a scheduler."""
    found = module.configure_optimizers()
    scheduler: Any = None
    if isinstance(found, Mapping):
        found, scheduler = found["optimizer"], found.get("lr_scheduler")
    elif isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], (tuple, list)):
        found, scheduler = found
    optimizers = list(found) if isinstance(found, (tuple, list)) else [found]
    schedulers = list(scheduler) if isinstance(scheduler, (tuple, list)) else [scheduler]
    if len(optimizers) != 1 or len(schedulers) > 1:
        raise ProgramError(
            f"configure_optimizers() returned {len(optimizers)} optimizers and {len(schedulers)} "
            "schedulers; one of "
            "each is known here. Several optimizers of one cost are ef.Groups in a program."
        )
    if optimizers[0] is None:
        raise ProgramError("configure_optimizers() returned no optimizer.")
    return untouched(optimizers[0]), _rate(optimizers[0], schedulers[0] if schedulers else None)


def _rate(optimizer: Any, scheduler: Any) -> Callable[..., float] | None:
    if scheduler is None:
        return None
    told = dict(scheduler) if isinstance(scheduler, Mapping) else {"scheduler": scheduler}
    scheduler, by = told["scheduler"], told.get("interval", "epoch")
    if told.get("frequency", 1) != 1:
        raise ProgramError(
            f"configure_optimizers(): frequency={told['frequency']} of the scheduler is not known here."
        )
    if type(scheduler).__name__ == "ReduceLROnPlateau":
        if scheduler.cooldown or scheduler.threshold_mode != "abs" and scheduler.threshold:
            raise ProgramError(
                "configure_optimizers(): of ReduceLROnPlateau no cooldown, and only threshold_mode='abs', "
                "is known "
                "here."
            )
        return lr.on_plateau(
            float(optimizer.param_groups[0]["lr"]),
            told.get("monitor", "cost"),
            patience=int(scheduler.patience) + 1,
            mode=scheduler.mode,
            factor=float(scheduler.factor),
            least=float(scheduler.min_lrs[0]),
            least_gain=float(scheduler.threshold),
        )
    rates = Rates(optimizer, scheduler)
    return lambda step, epoch: rates.at(step if by == "step" else epoch)


def _of_callback(callback: Any, tests: bool) -> dict[str, Any]:
    name = type(callback).__name__
    if name == "EarlyStopping":
        if not tests or callback.stopping_threshold is not None or callback.divergence_threshold is not None:
            raise ProgramError(
                "Trainer: EarlyStopping is known here with something to validate with, and without "
                "thresholds."
            )
        gain = abs(float(callback.min_delta))
        return {
            "early_stopping": early_stopping(
                callback.monitor, callback.patience, callback.mode, least_gain=gain
            )
        }
    if name.endswith(LEFT_OUT):
        return {}
    raise ProgramError(
        f"Trainer: the callback {name} is not known here; EarlyStopping is, and left out are those of "
        "checkpoints, "
        "progress and monitors. What a callback of your own decides on_epoch(info) can, in a program."
    )
