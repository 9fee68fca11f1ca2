"""Will it be watched, and for how long? One net, two costs, two optimizers. See README.md."""

import numpy as np
import torch
from torch.nn import functional as F

import elasticflow as ef

EPOCHS, BATCH, LR, LR_EMBEDDINGS = 3, 256, 2e-3, 0.1
USERS, FILMS, WIDTH = 500, 300, 16


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.film = torch.nn.Embedding(USERS, WIDTH), torch.nn.Embedding(FILMS, WIDTH)
        self.shared = torch.nn.Sequential(torch.nn.Linear(3 * WIDTH, 64), torch.nn.ReLU())
        for each in (self.user, self.film):
            torch.nn.init.normal_(each.weight, std=0.1)
        self.watched, self.minutes = torch.nn.Linear(64, 1), torch.nn.Linear(64, 1)

    def forward(self, user, film):
        user, film = self.user(user), self.film(film)
        both = self.shared(torch.cat([user, film, user * film], dim=1))
        return self.watched(both).squeeze(1), self.minutes(both).squeeze(1)


def data():
    rng = np.random.default_rng(1)
    tastes, kinds = rng.normal(size=(USERS, 2)), rng.normal(size=(FILMS, 2))
    of_user, of_film = rng.normal(size=USERS), rng.normal(size=FILMS)
    user, film = rng.integers(0, USERS, 40_000), rng.integers(0, FILMS, 40_000)
    liking = (tastes[user] * kinds[film]).sum(1) + of_user[user] + of_film[film]
    watched = (liking + rng.logistic(size=len(user)) > 0).astype(np.float32)
    minutes = (watched * np.exp(0.3 * liking + 0.2 * rng.normal(size=len(user)))).astype(np.float32)
    columns = {"user": user, "film": film, "watched": watched, "minutes": minutes}
    return {
        "train": {name: column[:32_000] for name, column in columns.items()},
        "test": {name: column[32_000:] for name, column in columns.items()},
    }


def model():
    embeddings = ef.Adagrad(lr=LR_EMBEDDINGS)
    groups = {"net.user.*": embeddings, "net.film.*": embeddings}
    return {"net": Net(), "optimizer": ef.Groups(ef.AdamW(lr=LR), groups)}


def costs(user, film, watched, minutes, params):
    """Two: of whether, and of how long, where it was watched at all."""
    odds, guess = params["net"](user, film)
    of_minutes = (watched * (guess - torch.log1p(minutes)) ** 2).mean()
    return F.binary_cross_entropy_with_logits(odds, watched), of_minutes


def forward(user, film, watched, minutes, params):
    return sum(costs(user, film, watched, minutes, params))


def metrics(user, film, watched, minutes, params):
    odds, guess = params["net"](user, film)
    return {
        "auc": ef.metrics.auc(torch.sigmoid(odds), watched),
        "minutes": costs(user, film, watched, minutes, params)[1],
    }
