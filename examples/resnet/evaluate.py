"""What an exported model is worth: python evaluate.py FILE.pt"""

import sys

import torch
from resnet import digits, resnet

net = resnet()
net.load_state_dict(torch.load(sys.argv[1]))
net.eval()
test = {name: torch.from_numpy(column) for name, column in digits()["test"].items()}
with torch.no_grad():
    print(f"accuracy {(net(test['x']).argmax(1) == test['y']).float().mean().item():.4f}")
