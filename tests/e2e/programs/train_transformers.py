"""A plain script of Hugging Face's transformers: nothing in it knows of ElasticFlow, but the gate."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gates import pass_gate


class Texts(torch.utils.data.Dataset):
    """Ids that go on as they began, from a place that is the record's."""

    def __init__(self, first, last):
        self.first, self.last = first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, number):
        ids = (torch.arange(12) * 3 + self.first + number) % 29
        return {"input_ids": ids, "labels": ids}


class Gated(Trainer):
    def compute_loss(self, model, inputs, **words):
        slices.append(1)
        if len(slices) > 20:
            pass_gate("late")
        return super().compute_loss(model, inputs, **words)


slices = []  # that this process has computed


def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=29, n_positions=12, n_embd=16, n_layer=1, n_head=2))
    options = TrainingArguments(
        tempfile.gettempdir(),
        num_train_epochs=3,
        per_device_train_batch_size=20,
        learning_rate=0.01,
        use_cpu=True,
    )
    trainer = Gated(model=model, args=options, train_dataset=Texts(0, 200), eval_dataset=Texts(200, 240))
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
