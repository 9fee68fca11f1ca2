"""What the text of a plain script says: which library trains it, and the settings of its run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from elasticflow.adapters.scripts import check_one_call, plain_script, script_settings
from elasticflow.errors import ProgramError
from elasticflow.run import config

KERAS = "import keras\nmodel = keras.Sequential([])\nmodel.fit({})\n"
LIGHTNING = "import lightning as L\nL.Trainer({}).fit(net, DataLoader({}))\n"
TRANSFORMERS = (
    "from transformers import Trainer, TrainingArguments\n"
    "Trainer(model=net, args=TrainingArguments('out', {})).train()\n"
)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (KERAS.format("x, y"), "keras"),
        ("from tensorflow import keras\ndef main():\n    keras.Model().fit(1)\n", "keras"),
        (LIGHTNING.format("", ""), "lightning"),
        ("import pytorch_lightning as pl\npl.Trainer().fit(net)\n", "lightning"),
        (TRANSFORMERS.format(""), "transformers"),
        ("import torch\nnet.train()\n", ""),
        ("import transformers\nnet.train()\n", ""),
        ("import keras\nfrom parts import *\nmodel.fit(x)\n", ""),
        (KERAS.format("x") + "def forward(x, params):\n    pass\n", ""),
        (KERAS.format("x") + "if True:\n    from parts import loop\n", ""),
        (KERAS.format("x") + "class Net:\n    def forward(self, x):\n        pass\n", "keras"),
    ],
)
def test_it_is_known_by_what_it_imports_and_calls(text: str, name: str) -> None:
    script = plain_script(ast.parse(text))
    assert (script.library.name if script else "") == name


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (KERAS.format("x, y"), {"epochs": 1, "batch_size": 32}),
        (KERAS.format("x, y, 64, 5"), {"epochs": 5, "batch_size": 64}),
        (
            "EPOCHS = 7\n" + KERAS.format("x, y, batch_size=None, epochs=EPOCHS"),
            {"epochs": 7, "batch_size": 32},
        ),
        (KERAS.format("pairs.batch(16), epochs=2"), {"epochs": 2, "batch_size": 16}),
        ("scaler.fit(z)\n" + KERAS.format("x, y, epochs=2"), {"epochs": 2, "batch_size": 32}),
        (LIGHTNING.format("max_epochs=3", "data, batch_size=20"), {"epochs": 3, "batch_size": 20}),
        (
            LIGHTNING.format("max_epochs=2, max_steps=9", "data"),
            {"max_steps": 9, "epochs": 2, "batch_size": 1},
        ),
        (LIGHTNING.format("max_steps=9", "data"), {"max_steps": 9, "epochs": 9, "batch_size": 1}),
        (TRANSFORMERS.format(""), {"epochs": 3, "batch_size": 8}),
        (
            TRANSFORMERS.format("num_train_epochs=2.0, per_device_train_batch_size=4, max_steps=-1"),
            {"epochs": 2, "batch_size": 4},
        ),
        (TRANSFORMERS.format("max_steps=50"), {"epochs": 50, "batch_size": 8, "max_steps": 50}),
        ("def model(): ...\ndef forward(): ...\n", {}),
    ],
)
def test_settings_are_read_in_its_text(tmp_path: Path, text: str, settings: dict[str, int]) -> None:
    assert script_settings(written(tmp_path, text), ()) == settings


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (KERAS.format("x, y, epochs=options.epochs"), "epochs", "line 3: epochs of fit()"),
        ("N = 1\nN = 2\n" + KERAS.format("x, y, epochs=N"), "epochs", "line 5: epochs of fit()"),
        (KERAS.format("x.batch(8), validation_data=z.batch(16)"), "batch_size", "batch_size of fit()"),
        (KERAS.format("*pair, batch_size=8"), "epochs", "epochs of fit()"),
        (KERAS.format("x, y, batch_size=8, **more"), "epochs", "epochs of fit()"),
        (LIGHTNING.format("", "data"), "epochs", "max_epochs of Trainer()"),
        (TRANSFORMERS.format("num_train_epochs=0.5"), "epochs", "num_train_epochs of TrainingArguments()"),
    ],
)
def test_what_its_text_does_not_tell_is_to_be_given(tmp_path: Path, text: str, name: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ProgramError) as caught:
        script_settings(path, ())
    assert words in str(caught.value) and f"--{name.replace('_', '-')}" in str(caught.value)
    assert name not in script_settings(path, (name,))


def test_the_command_line_beats_the_script_and_the_script_the_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, KERAS.format("x, y, epochs=5, batch_size=48"))
    file = tmp_path / "settings.yaml"
    file.write_text("batch_size: 24\n")
    found = config.make(str(file), {"program": path, "epochs": 2})
    assert (found.epochs, found.batch_size) == (2, 24)
    found = config.make(None, {"program": path})
    assert (found.epochs, found.batch_size) == (5, 48)
    found = config.make(None, {"program": path}, {"epochs": 9})
    assert (found.epochs, found.batch_size) == (9, config.Config().batch_size), (
        "a run that goes on has its own"
    )


def test_a_script_that_trains_twice_is_refused() -> None:
    script = plain_script(ast.parse(KERAS.format("x, epochs=1") + "model.fit(x, epochs=2)\n"))
    assert script
    with pytest.raises(ProgramError, match="2 times, in lines 3, 4"):
        check_one_call("script.py", script)
