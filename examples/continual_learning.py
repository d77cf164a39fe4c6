"""Learn classes step by step: a memory of condensed images replaces all earlier data.

Run: python examples/continual_learning.py    (less than 30 s on two cores)
"""

import condenset as cs

NETWORK = "convnet(width=32, depth=2)"
DIGITS = {"network": NETWORK, "iterations": 50, "lr": 10}  # for images of 8x8 pixels


def main(method="dm", recipe=DIGITS, ipc=5, epochs=150):
    data = cs.load("digits")
    images, labels, names = data.train.images, data.train.labels, data.train.class_names
    memory = cs.Memory(ipc=ipc, method=method, allow_hflip=False, verbose=False, **recipe)
    accuracies = []
    for first in range(0, 10, 2):  # two new classes in every step
        is_new = (labels == first) | (labels == first + 1)
        memory.add(images[is_new], labels[is_new], class_names=names)  # the real images can be deleted now
        classifier = memory.train(NETWORK, epochs=epochs)
        accuracies.append(classifier.accuracy(memory.select_test(data.test)))
        classes = f"{len(memory.class_names)} classes in {len(memory.set)} images"
        print(f"after digit {first + 1}: {classes}, test accuracy {accuracies[-1]:.1%}")
    return accuracies


if __name__ == "__main__":
    main()
