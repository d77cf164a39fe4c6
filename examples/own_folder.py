"""Condense your own folder of images, score the result and export it.

Run: python examples/own_folder.py photos/ --size 32    (a folder with a subfolder for each class)
Without a folder, the example writes digits as PNG files first    (less than 30 s on two cores)
"""

import argparse
from pathlib import Path

from PIL import Image

import condenset as cs


def write_digits(folder):
    """Write scikit-learn's digits as FOLDER/CLASS/NUMBER.png."""
    train = cs.load("digits").train
    for number, (pixels, label) in enumerate(zip(train.images, train.labels.tolist(), strict=True)):
        path = Path(folder) / train.class_names[label] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0].numpy()).save(path)
    return folder


def main(folder, out="condensed", size=None, method="dm", epochs=200, **recipe):
    data = cs.load(folder, size=size, test_share=0.2)  # a fifth of every class is held out for the test
    print(data)
    condensed = cs.condense(data.train, method, ipc=10, **recipe)
    scores = cs.evaluate(condensed, data.test, num_networks=2, epochs=epochs)
    print(f"{len(condensed)} images instead of {len(data.train)}: test accuracy {scores}")
    condensed.save(f"{out}.safetensors", overwrite=True)
    condensed.to_folder(out, overwrite=True)  # PNG files by class
    print(f"The set is in {out}.safetensors, its images are in {out}/")
    return scores.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--size", type=int)
    parser.add_argument("--iterations", type=int, default=500, help="a laptop needs minutes for 500")
    arguments = parser.parse_args()
    if arguments.folder:
        main(arguments.folder, size=arguments.size, iterations=arguments.iterations)
    else:
        digits = {"network": "convnet(width=64, depth=2)", "iterations": 100, "lr": 10}  # for images of 8x8 pixels
        main(write_digits("digits-folder"), **digits)
