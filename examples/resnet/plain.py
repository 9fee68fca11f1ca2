"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import numpy as np
import torch
from resnet import BATCH, DECAY, EMA, EPOCHS, LR, MOMENTUM, STEPS, WARMUP, augment, digits, resnet
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    np.random.seed(seed)
    found = digits()
    train, test = found["train"], {name: torch.from_numpy(column) for name, column in found["test"].items()}
    net = resnet()
    plain = [p for p in net.parameters() if p.dim() == 1]
    others = [p for p in net.parameters() if p.dim() > 1]
    groups = [{"params": others}, {"params": plain, "weight_decay": 0}]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / (WARMUP + 1)))
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [WARMUP])
    averages = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(EMA))
    for epoch in range(epochs):
        net.train()
        for rows in torch.randperm(len(train["y"])).split(BATCH):
            batch = augment({name: column[rows.numpy()] for name, column in train.items()})
            x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
            optimizer.zero_grad()
            F.cross_entropy(net(x), y, label_smoothing=0.05).backward()
            optimizer.step()
            schedule.step()
            averages.update_parameters(net)
        print(f"epoch {epoch + 1}: test accuracy {accuracy(net, test):.4f}")
    print(f"averages: {accuracy(averages, test):.4f}")


def accuracy(net, test):
    net.eval()
    with torch.no_grad():
        return (net(test["x"]).argmax(1) == test["y"]).float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
