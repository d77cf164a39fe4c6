"""Federated learning in one round: clients send condensed sets, and the server trains on their union.

No client sends its images or gradients, and none has seen more than two of the ten digits.

Run: python examples/federated.py    (less than 30 s on two cores)
"""

import tempfile
from pathlib import Path

import torch

import condenset as cs

EVALUATION = {"network": "convnet(width=64, depth=2)", "num_networks": 2}


def run_client(data, classes, path, method):
    """Condense the images of one client, which has some of the classes, and write the set to a file."""
    is_local = torch.isin(data.labels, torch.tensor(classes))
    names = [data.class_names[label] for label in data.labels[is_local]]
    constants = {"mean": data.mean, "std": data.std}  # all clients agree on the normalisation
    local = cs.from_arrays(data.images[is_local], names, name="digits", allow_hflip=False, **constants)
    cs.condense(local, method, ipc=10, verbose=False).save(path)


def merge(sets):
    """Return the union of sets with the same normalisation. Classes are matched by name."""
    names = sorted({name for item in sets for name in item.class_names})
    labels = [torch.tensor([names.index(name) for name in item.class_names])[item.labels] for item in sets]
    return cs.CondensedSet(
        images=torch.cat([item.images for item in sets]),
        labels=torch.cat(labels),
        class_names=tuple(names),
        mean=sets[0].mean,
        std=sets[0].std,
        provenance={"dataset": "digits", "allow_hflip": sets[0].allow_hflip},
    )


def main(method="dm", epochs=150):
    data = cs.load("digits")
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"client-{number}.safetensors" for number in range(5)]
        for number, path in enumerate(paths):
            run_client(data.train, [2 * number, 2 * number + 1], path, method)
        num_bytes = sum(path.stat().st_size for path in paths)
        union = merge([cs.CondensedSet.load(path) for path in paths])
    scores = cs.evaluate(union, data.test, epochs=epochs, **EVALUATION)
    print(f"{len(paths)} clients send {num_bytes / 1000:.0f} kB, {len(union)} images: test accuracy {scores}")
    return scores.mean


if __name__ == "__main__":
    main()
