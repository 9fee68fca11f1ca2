"""Plain scripts of PyTorch Lightning and of transformers, as programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.run import config  # noqa: E402
from elasticflow.run.settings import MemberSettings  # noqa: E402
from elasticflow.step.schedule import Kind  # noqa: E402
from elasticflow.worker.loaded import Loaded  # noqa: E402

# It says so where SLURM is installed.
pytestmark = pytest.mark.filterwarnings("ignore:The `srun` command is available")
LIGHTNING = """
import lightning as L, torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from lightning.pytorch.callbacks import Callback, EarlyStopping

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
    def training_step(self, batch):
        loss = torch.nn.functional.cross_entropy(self.net(batch["x"]), batch["y"])
        self.log("seen", loss)
        return {"loss": loss}
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch)["loss"] * 2)
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.4)
        return CONFIGURED

class Records(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, number):
        return {"x": torch.full((3,), float(number)), "y": number % 2}

class Endless(IterableDataset):
    def __iter__(self):
        return iter(Records())

def loader(data=None, **more):
    return DataLoader(data or Records(), batch_size=8, **more)

def trainer(**more):
    more |= {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    return L.Trainer(max_epochs=2, max_steps=-1, **more)
"""
TRANSFORMERS = """
import tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, number):
        ids = (torch.arange(6) + number) % 11
        return {"input_ids": ids, "labels": ids}

def trained(train=None, kind=Trainer, words={}, **more):
    more['use_cpu'] = True
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=6, n_embd=8, n_layer=1, n_head=2))
    options = TrainingArguments(
        tempfile.gettempdir(), num_train_epochs=2, per_device_train_batch_size=8, max_steps=-1, **more
    )
    kind(model=model, args=options, train_dataset=train or Texts(), **words).train()
"""


def loaded(folder: Path, text: str) -> Loaded:
    script = folder / "script.py"
    script.write_text(text)
    chosen = config.make(None, {"program": str(script)})
    return Loaded(MemberSettings.of(chosen, name="worker-0", role="worker", host="", master="", run_dir=""))


def of_lightning(folder: Path, fit: str, configured: str = "optimizer") -> Loaded:
    pytest.importorskip("lightning")
    return loaded(folder, LIGHTNING.replace("CONFIGURED", configured) + fit)


def of_transformers(folder: Path, call: str) -> Loaded:
    pytest.importorskip("transformers")
    return loaded(folder, TRANSFORMERS + call)


def rates(found: Loaded, *steps: int) -> list[float]:
    """Of a run of 12 steps, in two epochs."""
    rate = found.program.learning_rate
    assert rate
    return [rate(step, step // 6, *[12] * found.is_paced) for step in steps]


def test_a_module_is_a_program(tmp_path: Path) -> None:
    found = of_lightning(
        tmp_path,
        "stopping = EarlyStopping('val_loss', patience=2, min_delta=0.1)\n"
        "trainer(gradient_clip_val=0.5, callbacks=[stopping]).fit(Net(), loader(shuffle=True), loader())",
    )
    assert found.schedule.batch_size == 8 and found.replica.optimizers.optimizer.clip_norm == 0.5
    batch = found.batches(found.schedule).of_rows(Kind.EVALUATE, np.arange(48))
    cost, seen, logged = found.replica.evaluate(batch, 0)
    net = found.program.model()["model"].net
    x = torch.arange(48.0)[:, None].expand(48, 3)
    expected = torch.nn.functional.cross_entropy(net(x), torch.arange(48) % 2).item()
    assert (cost, seen, logged) == pytest.approx((expected, expected, 2 * expected), rel=1e-5)
    stopping = found.program.rules.stopping
    assert stopping and (stopping.metric, stopping.patience, stopping.least_gain) == ("val_loss", 2, 0.1)


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ("[optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]", [0.4, 0.4, 0.2]),
        (
            "{'optimizer': optimizer, 'lr_scheduler': {'interval': 'step', "
            "'scheduler': torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)}}",
            [0.2, 0.4, 0.4],
        ),
    ],
)
def test_schedulers_of_steps_and_of_epochs(tmp_path: Path, configured: str, expected: list[float]) -> None:
    found = of_lightning(tmp_path, "trainer().fit(Net(), loader())", configured)
    assert found.replica.optimizers.optimizer.lr == pytest.approx(0.4)
    assert rates(found, 0, 2, 6) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fit", "configured", "words"),
    [
        ("trainer(accumulate_grad_batches=2).fit(Net(), loader())", "optimizer", "accumulate_grad_batches=2"),
        ("trainer(fast_dev_run=True).fit(Net(), loader())", "optimizer", "fast_dev_run"),
        ("trainer(limit_train_batches=1).fit(Net(), loader())", "optimizer", "limit_train_batches=1"),
        ("trainer(precision='bf16-mixed').fit(Net(), loader())", "optimizer", "precision='bf16-mixed'"),
        ("trainer(callbacks=[Callback()]).fit(Net(), loader())", "optimizer", "the callback Callback is not"),
        ("trainer().fit(Net(), loader(Endless()))", "optimizer", "a Endless's records only come one after"),
        ("trainer().fit(Net(), loader())", "[optimizer, optimizer]", "returned 2 optimizers"),
        (
            "weights = torch.utils.data.WeightedRandomSampler([1.0] * 48, 48)\n"
            "trainer().fit(Net(), loader(sampler=weights))",
            "optimizer",
            "has a WeightedRandomSampler of its own",
        ),
        (
            "Net.on_before_optimizer_step = lambda self, optimizer: None\ntrainer().fit(Net(), loader())",
            "optimizer",
            r"Net has a on_before_optimizer_step\(\) of its own",
        ),
        (
            "net = Net()\nnet.automatic_optimization = False\ntrainer().fit(net, loader())",
            "optimizer",
            "automatic_optimization is off",
        ),
        ("trainer().fit(Net(), loader(collate_fn=lambda each: each[0]['y']))", "optimizer", "is int; it"),
    ],
)  # fmt: skip
def test_what_a_module_cannot_have(tmp_path: Path, fit: str, configured: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        of_lightning(tmp_path, fit, configured)


def test_what_only_a_trainer_would_know(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"Net: self\.current_epoch is not known here"):
        of_lightning(
            tmp_path,
            "Net.training_step = lambda self, batch: self.net(batch['x']).sum() * self.current_epoch\n"
            "trainer().fit(Net(), loader(), loader())",
        )
    found = of_lightning(
        tmp_path,
        "trainer().fit(Net(), loader())",
        "[optimizer], [torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.4, 2, base_momentum=0.5)]",
    )
    with pytest.raises(ProgramError, match="CyclicLR changes more than the learning rate"):
        rates(found, 0, 6)


def test_a_trainer_is_a_program(tmp_path: Path) -> None:
    found = of_transformers(tmp_path, "trained(learning_rate=0.1, warmup_steps=2, weight_decay=0.1)")
    optimizers: Any = found.replica.optimizers
    assert (optimizers.optimizer.weight_decay, optimizers.optimizer.clip_norm) == (0.1, 1.0)
    assert {each.weight_decay for each in optimizers.groups.values()} == {0.0}
    assert rates(found, 0, 1, 2, 7) == pytest.approx([0.0, 0.05, 0.1, 0.05])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("trained(gradient_accumulation_steps=2)", "gradient_accumulation_steps=2 is not 1"),
        ("trained(words={'compute_metrics': print})", "compute_metrics sees all predictions at once"),
        ("trained(words={'callbacks': [TrainerCallback()]})", "the callback TrainerCallback is not known"),
        (
            "class Own(Trainer):\n    def training_step(self, *given):\n        return 0\ntrained(kind=Own)",
            r"Own has a training_step\(\) of its own",
        ),
    ],
)
def test_what_a_trainer_cannot_have(tmp_path: Path, call: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        of_transformers(tmp_path, call)
