"""Train a classifier on the contents of a replay memory."""

from __future__ import annotations

from typing import Any

from condenset import networks
from condenset.continual.steps import ImageFormat
from condenset.data.condensed_set import CondensedSet
from condenset.errors import UserError, check
from condenset.networks import NetworkBuilder
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress
from condenset.training.classifier import Classifier
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import training_protocol
from condenset.training.scoring import network_of_set
from condenset.training.trainer import Trainer


def train_classifier(
    condensed: CondensedSet,
    image_format: ImageFormat,
    network: str | NetworkBuilder | None,
    run: RunContext,
    **fields: Any,
) -> Classifier:
    """Train one network on a set.

    Args:
        condensed: The set.
        image_format: Format of its images.
        network: A spec or a builder. None: the network that the set was condensed with.
        run: The run. Its seed decides the initial weights and the order of images.
        fields: Fields of the protocol.
    """
    rule = "num_networks must not be given, because one network is trained (see cs.evaluate)"
    check("num_networks" not in fields, rule, fields.get("num_networks"))
    spec = network_of_set(condensed) if network is None else networks.as_spec(network)
    chosen = fields if spec is None else {"network": spec, **fields}
    protocol = training_protocol(name=image_format.name, size=image_format.shape[-1], **chosen)
    train_set = DeviceDataset.from_data(condensed, run.compute.device)
    trainer = Trainer(protocol.network, train_set, protocol, run.compute)
    with track_progress(run, "training a network", trainer.num_steps) as report:
        trainer.train(run.seed, "evaluate", 0, report=report)
    if not trainer.is_finite():
        raise UserError("Training diverged: the weights contain NaN or infinity. Try a smaller lr.")
    # Networks of users may accept images of any size.
    size = image_format.shape[-1] if networks.has_default_init(protocol.network) else None
    return Classifier(trainer.export_network(), condensed.class_names, image_format.mean, image_format.std, size)
