"""Rank architectures on a condensed set, and train the best one on all images.

Run: python examples/architecture_search.py    (less than 30 s on two cores)
"""

import condenset as cs


def main(method="dm", epochs=60, whole_epochs=20):
    data = cs.load("digits")
    train, validation = cs.train_val_split(data.train, 0.1)  # the test images are not used for the choice
    condensed = cs.condense(train, method, ipc=10)
    space = [
        f"convnet(width={width}, depth={depth}, norm={norm!r}, pooling={pooling!r})"
        for width in (16, 32)
        for depth in (1, 2)
        for norm in ("none", "instance")
        for pooling in ("average", "max")
    ]
    ranking = cs.rank(space, condensed, validation, epochs=epochs)
    print(ranking)
    best = ranking.best.name
    scores = cs.evaluate(data.train, data.test, network=best, num_networks=1, epochs=whole_epochs)
    print(f"{best}, trained on all {len(data.train)} images: test accuracy {scores}")
    return ranking, scores.mean


if __name__ == "__main__":
    main()
