"""The same net in a loop of its own, to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import torch
from gpt import BATCH, CLIP, DECAY, EPOCHS, GPT, LR, STEPS, WARMUP, forward, windows


def main(seed=0, epochs=EPOCHS):
    torch.manual_seed(seed)
    train, test = (torch.from_numpy(each["text"]) for each in windows().values())
    params = {"net": GPT()}
    net = params["net"]
    matrices = [p for name, p in net.named_parameters() if p.dim() > 1 and name.split(".")[0] == "layers"]
    matrices.append(net.head.weight)
    others = [p for p in net.parameters() if all(p is not each for each in matrices)]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / (WARMUP + 1)))
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP, LR / 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [WARMUP])
    for epoch in range(epochs):
        net.train()
        for rows in torch.randperm(len(train)).split(BATCH):
            optimizer.zero_grad()
            forward(train[rows], params).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            costs = [forward(rows, params) * len(rows) for rows in test.split(BATCH)]
        print(f"epoch {epoch + 1}: test cost {sum(costs).item() / len(test):.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:]))
