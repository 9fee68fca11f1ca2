"""``Trainer.train`` of Hugging Face's transformers in a plain script, as a program: docs/transformers.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elasticflow.adapters.torch_fits import LoaderRecords, Rates, clipped, untouched
from elasticflow.errors import ProgramError

USUAL = {
    "gradient_accumulation_steps": (1, "take a larger batch, which slices make fit"),
    "fp16": (False, "compute in bfloat16 with torch.autocast inside the model"),
    "bf16": (False, "compute in bfloat16 with torch.autocast inside the model"),
    "group_by_length": (False, "records of an epoch are always shuffled"),
    "load_best_model_at_end": (False, "the best checkpoint is kept with ef.keep_best, in a program"),
}
"""Of TrainingArguments, what can be nothing else, and what to do instead."""
OWN = ("training_step", "create_optimizer_and_scheduler", "get_batch_samples", "optimizer_step")
"""Methods that would change what is trained, and are not called here."""
USUAL_CALLBACKS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "NotebookProgressCallback")


def check_library(transformers: Any) -> None:
    """Any will do."""


@contextmanager
def watched(transformers: Any) -> Iterator[None]:
    """Nothing is noted beforehand."""
    yield


def program_of(trainer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a program would have defined. Raises ProgramError for what cannot be trained here."""
    _check(trainer, given)
    batches = LoaderRecords("train_dataset", trainer.get_train_dataloader())
    data: dict[str, Any] = {"train": batches.source}
    if trainer.eval_dataset is not None:
        data["test"] = LoaderRecords("eval_dataset", trainer.get_eval_dataloader()).source
    model, created = trainer.model, trainer.create_optimizer()
    optimizer = untouched(created)
    clipped(optimizer, trainer.args.max_grad_norm, None)

    def forward(*, params: Any, **columns: Any) -> Any:
        return trainer.compute_loss(params["model"], batches.batch(columns))

    return {
        "model": lambda: {"model": model, "optimizer": optimizer},
        "data": lambda: dict(data),
        "forward": forward,
        "learning_rate": _rate(trainer, created),
    }


def _rate(trainer: Any, optimizer: Any) -> Callable[[int, int, int], float]:
    """Of the scheduler that the trainer makes for a run of so many steps."""
    known: dict[int, Rates] = {}

    def learning_rate(step: int, epoch: int, steps: int) -> float:
        if steps not in known:
            own, trainer.lr_scheduler = untouched(optimizer), None
            scheduler = trainer.create_scheduler(num_training_steps=steps, optimizer=own)
            known[steps] = Rates(own, scheduler)
        return known[steps].at(step)

    return learning_rate


def _check(trainer: Any, given: Mapping[str, Any]) -> None:
    if given.get("resume_from_checkpoint"):
        raise ProgramError(
            "train(): resume_from_checkpoint is not known here; a run goes on by --resume, or --init-from "
            "FILE."
        )
    for name, (usual, advice) in USUAL.items():
        value = getattr(trainer.args, name, usual)
        if value != usual:
            raise ProgramError(
                f"TrainingArguments: {name}={value!r} is not {usual!r}, which is all that is known here: "
                f"{advice}."
            )
    if trainer.compute_metrics is not None:
        raise ProgramError(
            "Trainer: compute_metrics sees all predictions at once, which no process has here; leave it "
            "out, and "
            "evaluate what ef.Run(FOLDER).model() gives. The cost of eval_dataset is shown after each epoch."
        )
    base = next(each for each in type(trainer).__mro__ if each.__name__ == "Trainer")
    for name in OWN:
        if getattr(type(trainer), name, None) is not getattr(base, name, None):
            raise ProgramError(
                f"{type(trainer).__name__} has a {name}() of its own, which is not called here; "
                "compute_loss() is."
            )
    for callback in trainer.callback_handler.callbacks:
        reports = type(callback).__module__.startswith("transformers.integrations")
        if not reports and type(callback).__name__ not in USUAL_CALLBACKS:
            raise ProgramError(
                f"Trainer: the callback {type(callback).__name__} is not known here; what it decides "
                "on_epoch(info) "
                "can, in a program."
            )
