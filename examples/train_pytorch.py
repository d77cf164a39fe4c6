"""Train a network on a condensed set in plain PyTorch.

Run: python examples/train_pytorch.py    (less than 30 s on two cores)
"""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import condenset as cs
from condenset import networks

NETWORK = "convnet(width=64, depth=2)"


def train(condensed, epochs):
    """Train by the protocol of `cs.evaluate`: SGD, augmentation, a tenth of the learning rate halfway."""
    channels, size = condensed.images.shape[1:3]
    network = networks.build(NETWORK, channels=channels, size=size, num_classes=condensed.num_classes)
    loader = DataLoader(condensed, batch_size=256, shuffle=True)  # a set is a torch Dataset
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [epochs // 2 + 1])
    for _ in range(epochs):
        for pixels, labels in loader:
            inputs = condensed.augment(condensed.normalize(pixels))
            loss = F.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return network.eval()


def main(method="dm", epochs=300):
    data = cs.load("digits")
    condensed = cs.condense(data.train, method, ipc=10)
    torch.manual_seed(0)
    network = train(condensed, epochs)
    with torch.inference_mode():
        predictions = network(condensed.normalize(data.test.images)).argmax(1)
    accuracy = float((predictions == data.test.labels).float().mean())
    print(f"{len(condensed)} images instead of {len(data.train)}: test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
