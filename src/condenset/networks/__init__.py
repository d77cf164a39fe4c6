"""Networks by spec: `build("convnet(width=128, norm='batch')", channels=3, size=32, num_classes=10)`."""

from condenset.networks import alexnet, alexnet_small, convnet, lenet, mlp, resnet, vgg
from condenset.networks.base import Network
from condenset.networks.building import (
    build,
    describe_user_network,
    display_name,
    seed_global_rng,
    uses_batch_norm,
)
from condenset.networks.convnet_search_space import search_space
from condenset.networks.embedding import to_embedding
from condenset.networks.parameters import (
    FlatParameters,
    fixed_tensors,
    flatten_parameters,
    init_specs,
    initialize,
    use_batch_statistics,
)
from condenset.networks.registry import (
    NETWORKS,
    Architectures,
    NetworkBuilder,
    as_spec,
    canonical_spec,
    check_network,
    describe_networks,
    has_default_init,
    is_known,
    name_architectures,
    register_network,
)
from condenset.networks.spec import Architecture, Option

__all__ = [
    "NETWORKS",
    "Architecture",
    "Architectures",
    "FlatParameters",
    "Network",
    "NetworkBuilder",
    "Option",
    "as_spec",
    "build",
    "canonical_spec",
    "check_network",
    "describe_networks",
    "describe_user_network",
    "display_name",
    "fixed_tensors",
    "flatten_parameters",
    "has_default_init",
    "init_specs",
    "initialize",
    "is_known",
    "name_architectures",
    "register_network",
    "search_space",
    "seed_global_rng",
    "to_embedding",
    "use_batch_statistics",
    "uses_batch_norm",
]

for _architecture in (
    convnet.ARCHITECTURE,
    alexnet.ARCHITECTURE,
    alexnet_small.ARCHITECTURE,
    vgg.ARCHITECTURE,
    resnet.RESNET18,
    resnet.RESNET18_AP,
    lenet.ARCHITECTURE,
    mlp.ARCHITECTURE,
):
    register_network(_architecture)
