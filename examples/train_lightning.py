"""Train a network on a condensed set with Lightning.

Install: pip install lightning
Run: python examples/train_lightning.py    (less than 30 s on two cores)
"""

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import condenset as cs
from condenset import networks

NETWORK = "convnet(width=64, depth=2)"


class Classifier(lightning.LightningModule):
    def __init__(self, condensed, epochs):
        super().__init__()
        channels, size = condensed.images.shape[1:3]
        self.condensed, self.epochs = condensed, epochs
        self.network = networks.build(NETWORK, channels=channels, size=size, num_classes=condensed.num_classes)

    def training_step(self, batch):
        pixels, labels = batch
        inputs = self.condensed.augment(self.condensed.normalize(pixels))
        return F.cross_entropy(self.network(inputs), labels)

    def test_step(self, batch):
        pixels, labels = batch
        predictions = self.network(self.condensed.normalize(pixels)).argmax(1)
        self.log("accuracy", (predictions == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [self.epochs // 2 + 1])]


def main(method="dm", epochs=300):
    data = cs.load("digits")
    condensed = cs.condense(data.train, method, ipc=10)
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=epochs, enable_progress_bar=False, log_every_n_steps=1, **quiet)
    model = Classifier(condensed, epochs)
    trainer.fit(model, DataLoader(condensed, batch_size=256, shuffle=True))
    accuracy = trainer.test(model, DataLoader(data.test, batch_size=256), verbose=False)[0]["accuracy"]
    print(f"{len(condensed)} images instead of {len(data.train)}: test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
