"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import torch
from multi_task import BATCH, EPOCHS, LR, LR_EMBEDDINGS, Net, costs, data
from sklearn.metrics import roc_auc_score


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = (
        {name: torch.from_numpy(column) for name, column in each.items()} for each in data().values()
    )
    net = Net()
    embeddings = [*net.user.parameters(), *net.film.parameters()]
    rest = [parameter for name, parameter in net.named_parameters() if name[:4] not in ("user", "film")]
    optimizers = [torch.optim.AdamW(rest, lr=LR), torch.optim.Adagrad(embeddings, lr=LR_EMBEDDINGS)]
    for epoch in range(epochs):
        for rows in torch.randperm(len(train["user"])).split(BATCH):
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(
                costs(**{name: column[rows] for name, column in train.items()}, params={"net": net})
            ).backward()
            for optimizer in optimizers:
                optimizer.step()
        with torch.no_grad():
            odds, _ = net(test["user"], test["film"])
            of_minutes = costs(**test, params={"net": net})[1].item()
        auc = roc_auc_score(test["watched"].numpy(), odds.numpy())
        print(f"epoch {epoch + 1}: test auc {auc:.4f}  minutes {of_minutes:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
