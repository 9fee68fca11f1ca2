"""A plain script of PyTorch Lightning: nothing in it knows of ElasticFlow, but the gate."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from gates import pass_gate


def rate(epoch):
    pass_gate(f"epoch {epoch}")
    return 0.9**epoch


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.inner, self.norm = torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16)
        self.outer = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2))

    def forward(self, x):
        return self.outer(self.norm(self.inner(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        right = (scores.argmax(1) == y).float().mean()
        self.log_dict({"val_loss": torch.nn.functional.cross_entropy(scores, y), "accuracy": right})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, rate)]


class Records(lightning.LightningDataModule):
    def setup(self, stage):
        x = torch.randn(500, 6, generator=torch.Generator().manual_seed(5))
        y = (x[:, 0] > x[:, 1]).long()
        self.train, self.test = TensorDataset(x[:400], y[:400]), TensorDataset(x[400:], y[400:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=40, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.test, batch_size=100)


if __name__ == "__main__":
    trainer = lightning.Trainer(max_epochs=3, gradient_clip_val=1.0, logger=False, enable_checkpointing=False)
    trainer.fit(Net(), datamodule=Records())
    print(trainer.callback_metrics)
