"""The datasets that condenset knows by name: one module per family. Importing this package registers all of them."""

from condenset.data.datasets import cifar, digits, imagenet, mnist
from condenset.data.datasets.sources import register_dataset

__all__ = ["cifar", "digits", "imagenet", "mnist"]

for source in (*digits.SOURCES, *mnist.SOURCES, *cifar.SOURCES, *imagenet.SOURCES):
    register_dataset(source)
