"""Will it be clicked? A wide and deep net on a table as Hive leaves it. See README.md."""

from pathlib import Path

import torch

import elasticflow as ef

FOLDER = Path(__file__).parent / "data" / "clicks"
SITES = [
    f"site-{number}" for number in range(40)
]  # 'elasticflow data describe FOLDER --vocabularies' writes such
TAGS = [f"tag-{number}" for number in range(30)]
USERS, DIM, LR = 4096, 8, 0.003


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Embedding(len(SITES) + 1, 1)
        self.site = torch.nn.Embedding(len(SITES) + 1, DIM)
        self.user = torch.nn.Embedding(USERS, DIM)
        self.tags = torch.nn.EmbeddingBag(len(TAGS) + 1, DIM, mode="sum", padding_idx=0)
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(3 * DIM + 3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, site, user, tags, tags_lengths, age, since, price):
        tastes = self.tags(tags) / tags_lengths.clamp(min=1).unsqueeze(1)
        numbers = torch.stack([age / 50 - 1, since / 365 - 56, price / 5000 - 1], dim=1).float()
        deep = self.deep(torch.cat([self.site(site), self.user(user), tastes, numbers], dim=1))
        return (self.wide(site) + deep).squeeze(1)


def model():
    return {"net": Net(), "optimizer": ef.Adam(lr=LR)}


def forward(site, user, tags, tags_lengths, age, since, price, click, params):
    odds = params["net"](site, user, tags, tags_lengths, age, since, price)
    return torch.nn.functional.binary_cross_entropy_with_logits(odds, click.float())


def predict(site, user, tags, tags_lengths, age, since, price, params):
    return {"chance": torch.sigmoid(params["net"](site, user, tags, tags_lengths, age, since, price))}


def data():
    def days(*filters):
        return ef.data.Parquet(
            FOLDER,
            ["site", "user", "tags", "age", "since", "price", "click"],
            vocabularies={"site": SITES, "tags": TAGS},  # 0 is any other, and none
            hashing={"user": USERS},
            defaults={"age": 45},
            pad={"tags": ef.data.Pad()},  # those of a slice are made equally long
            filters=list(filters),
        )

    return {"train": days(("date", "<", "2026-11-20")), "test": days(("date", "=", "2026-11-20"))}
