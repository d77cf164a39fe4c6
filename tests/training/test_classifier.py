"""The classifier that a replay memory trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.data.class_selection import select_classes
from condenset.training.classifier import Classifier
from helpers.memories import TRAINING, tiny_memory
from helpers.reference_dm import tiny_data


def test_trained_network_is_the_one_that_evaluate_tests() -> None:
    data = tiny_data([12, 12, 12])
    memory = tiny_memory(ipc=4)
    memory.add(select_classes(data, ["class 2", "class 1"]))
    classifier, test_set = memory.train(**TRAINING, seed=7), memory.select_test(data)
    scores = cs.evaluate(memory.set, test_set, num_networks=1, seed=7, device="cpu", **TRAINING)
    assert classifier.accuracy(data) == pytest.approx(scores.mean)
    assert not classifier.training
    assert len(test_set) == 24 and test_set.class_names == ("class 2", "class 1")
    assert torch.equal(test_set.images, data.images[data.labels > 0])
    names = classifier.predict(test_set.images)
    assert classifier.predict(test_set) == names
    is_right = [
        name == test_set.class_names[label] for name, label in zip(names, test_set.labels.tolist(), strict=True)
    ]
    assert np.mean(is_right) == pytest.approx(scores.mean)
    assert classifier(test_set.images[:5].float() / 255).shape == (5, 2)
    memory.add(select_classes(data, ["class 0"]))
    assert memory.train(**TRAINING).class_names == ("class 2", "class 1", "class 0")
    assert classifier.class_names == ("class 2", "class 1")


def test_network_of_learned_steps_is_not_used_without_them() -> None:
    data = tiny_data([6, 6])
    memory = cs.Memory(ipc=1, method="dd", iterations=1, steps=1, epochs=1, network="mlp(width=8)", device="cpu")
    memory.add(data)
    scores = cs.evaluate(memory.set, data, num_networks=1, epochs=1, device="cpu")
    assert scores.network == "ConvNet"
    assert memory.train(epochs=1).accuracy(data) == pytest.approx(scores.mean)


def test_classes_without_test_images_give_a_warning() -> None:
    data, memory = tiny_data([6] * 13), tiny_memory()
    memory.add(data)
    classifier, two_classes = memory.train(**TRAINING), select_classes(data, data.class_names[:2])
    for function in (classifier.accuracy, memory.select_test):
        with pytest.warns(UserWarning, match=r"^11 of 13 classes have no test images .*: 'class 2', .* 'class 11', …$"):
            function(two_classes)
    with pytest.warns(UserWarning, match=r"^1 of 13 classes have no test images and are left out: 'class 12'$"):
        assert len(memory.select_test(select_classes(data, data.class_names[:12]))) == 72


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    memory = tiny_memory()
    memory.add(tiny_data([6, 6]))
    return memory.train(**TRAINING)


def test_uint8_and_float_pixels_are_equivalent(classifier: Classifier) -> None:
    images = tiny_data([6, 6]).images
    assert torch.equal(classifier(images.float() / 255), classifier(images))
    exported = torch.export.export(classifier, (images.float() / 255,)).module()
    torch.testing.assert_close(exported(images.float() / 255), classifier(images))


def test_invalid_images_are_refused(classifier: Classifier) -> None:
    images = tiny_data([6, 6]).images
    with pytest.raises(cs.UserError, match="pixels must be a tensor"):
        classifier(images.numpy())
    with pytest.raises(cs.UserError, match=r"shape \(N, 3, 8, 8\), but got \(2, 3, 16, 16\)"):
        classifier.accuracy(tiny_data([1, 1], size=16))
    one_image = r"images must have the shape \(N, 3, 8, 8\), but got \(3, 8, 8\); pass one image as image\[None\]"
    for function in (classifier, classifier.predict):
        with pytest.raises(cs.UserError, match=one_image):
            function(images[0])
        with pytest.raises(cs.UserError, match=r"\(N, 3, 8, 8\), but got \(12, 1, 8, 8\)$"):
            function(images[:, :1])
        assert len(function(images[0][None])) == 1
    with pytest.raises(cs.UserError, match=r"got \(8, 8, 3\); pass one image as image\[None\]"):
        classifier.predict(images[0].permute(1, 2, 0).numpy())
    grey = tiny_memory()
    grey.add(tiny_data([6, 6], channels=1))
    with pytest.raises(cs.UserError, match=r"got \(12, 8, 8\); pass grey images as images\[:, None\]"):
        grey.train(**TRAINING)(images[:, 0])


def linear(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels * size**2, num_classes))


def test_large_images_are_classified_in_smaller_batches() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    Classifier(network, ("a", "b"), (0.5,), (0.2,)).predict(torch.full((300, 1, 128, 128), 7, dtype=torch.uint8))
    assert sizes == [250, 50]


def test_memory_trains_user_networks() -> None:
    data, memory = tiny_data([12, 12]), tiny_memory(ipc=4)
    memory.add(data)
    global_state = torch.get_rng_state()
    first, again, other = (memory.train(linear, epochs=20, lr=0.05, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(global_state, torch.get_rng_state())
    images = data.images[:5].float() / 255
    assert torch.equal(first(images), again(images))
    assert not torch.equal(first(images), other(images))
    assert first.accuracy(data) > 0.6
    with pytest.raises(cs.UserError, match=r"called as builder.*a network that is already built"):
        memory.train(linear(3, 8, 2))  # type: ignore[arg-type]


def raises_error(channels: int, size: int, num_classes: int) -> nn.Module:
    raise RuntimeError("no such\nlayer")


def fails_in_training(channels: int, size: int, num_classes: int) -> nn.Module:
    class Network(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward({False: images}[self.training].flatten(1))

    return Network(channels * size**2, num_classes)


def takes_no_arguments() -> nn.Module:
    return nn.Identity()


def has_wrong_input(channels: int, size: int, num_classes: int) -> nn.Module:
    return linear(channels, size + 1, num_classes)


def has_wrong_output(channels: int, size: int, num_classes: int) -> nn.Module:
    return linear(channels, size, num_classes + 1)


FAULTY_BUILDERS: dict[Any, str] = {
    raises_error: "failed: no such layer$",
    fails_in_training: "failed: True$",
    takes_no_arguments: "takes 0 positional arguments but 3 were given",
    has_wrong_input: "shapes cannot be multiplied",
    has_wrong_output: r"logits of shape \(2, 2\) for 2 images, but got \(2, 3\)",
}


@pytest.mark.parametrize("builder", FAULTY_BUILDERS, ids=lambda builder: builder.__name__)
def test_errors_of_user_networks_are_user_errors_with_the_same_reason_as_in_rank(builder: Any) -> None:
    data, memory = tiny_data([4, 4]), tiny_memory()
    memory.add(data)
    with pytest.raises(cs.UserError, match=FAULTY_BUILDERS[builder]) as error:
        memory.train(builder, epochs=1)
    (row,) = cs.rank([builder], memory.set, data, epochs=1, device="cpu").rows
    assert row.reason == str(error.value)


def test_errors_of_built_in_networks_are_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tiny_memory()
    memory.add(tiny_data([4, 4]))
    monkeypatch.setattr("condenset.training.trainer.Trainer.train", lambda *_, **__: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        memory.train(**TRAINING)
