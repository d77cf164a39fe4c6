"""Specs: parsing, canonical form, and error messages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.errors import UserError
from condenset.networks import (
    NETWORKS,
    Network,
    build,
    canonical_spec,
    describe_networks,
    display_name,
    uses_batch_norm,
)
from condenset.networks.spec import parse_spec

# spec -> part of the message
REFUSED = {
    "convnet(width=__import__('os').system('x'))": "a network must be written like",
    "convnet(width=open('x').read())": "a network must be written like",
    "convnet(": "a network must be written like",
    "convnet(128)": "a network must be written like",
    "convnet(*[1])": "a network must be written like",
    "convnet(**{'width': 3})": "a network must be written like",
    "convnet(width=3, width=4)": "a network must be written like",
    "convnet(width=depth)": "width must be a whole number from 1 to 4096, but got 'depth'",
    "convnet(norm=batch.norm)": "a network must be written like",
    "convnet(norm={[]: 1})": "a network must be written like",
    "convnet()()": "a network must be written like",
    "convnet.build": "a network must be written like",
    "convnet; import os": "a network must be written like",
    "convnet\nalexnet": "a network must be written like",
    "con\0vnet": "a network must be written like",
    "": "a network must be written like",
    "(" * 199: "a network must be written like",
    "-" * 199 + "1": "a network must be written like",
    "convnet" + " " * 200: "at most 200 characters",
    "vit": "network must be one of convnet, alexnet, alexnet_small, vgg11, resnet18, resnet18_ap, lenet, mlp, but "
    "got 'vit'",
    "convent": "network cannot be 'convent'; did you mean 'convnet'?",
    "ConvNet": "did you mean 'convnet'?",
    "convnet(widht=3)": "cannot be 'widht'; did you mean 'width'?",
    "convnet(width='a')": "width must be a whole number from 1 to 4096, but got 'a'",
    "convnet(width=True)": "width must be a whole number from 1 to 4096, but got True",
    "convnet(width=0)": "width must be a whole number from 1 to 4096, but got 0",
    "convnet(width=-1)": "width must be a whole number from 1 to 4096, but got -1",
    "convnet(width=128.0)": "width must be a whole number from 1 to 4096, but got 128.0",
    "convnet(width=10**9)": "a network must be written like",
    "convnet(width=1000000000000)": "width must be a whole number from 1 to 4096, but got 1000000000000",
    "convnet(depth=0)": "depth must be a whole number from 1 to 32, but got 0",
    "convnet(depth=None)": "depth must be a whole number from 1 to 32, but got None",
    "convnet(norm='bn')": "norm must be one of none, batch, layer, instance, group, but got 'bn'",
    "convnet(norm=['batch'])": "norm cannot be ['batch']; did you mean 'batch'?",
    "convnet(norm='\\d')": "norm must be one of",
    "convnet(activation='relo')": "did you mean 'relu'?",
    "convnet(pooling='avg')": "pooling cannot be 'avg'; did you mean 'average'?",
    "alexnet(norm='layer')": "norm must be one of none, batch, instance, but got 'layer'",
    "vgg11(norm='none')": "norm must be one of instance, batch, but got 'none'",
    "resnet18(average_pooling=True)": "an option of ResNet-18 must be one of norm, but got 'average_pooling'",
    "lenet(width=3)": "LeNet takes no options, but got 'width'",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_invalid_specs_are_refused_in_one_line(spec: str) -> None:
    functions = (
        lambda: build(spec, channels=3, size=32, num_classes=10),
        lambda: canonical_spec(spec, size=32),
        lambda: display_name(spec),
        lambda: uses_batch_norm(spec),
    )
    for function in functions:
        with pytest.raises(UserError) as caught:
            function()
        message = str(caught.value)
        assert REFUSED[spec] in message
        assert "\n" not in message


def test_quotes_are_optional() -> None:
    assert parse_spec("convnet(norm=batch, width=8)") == parse_spec("convnet(norm='batch', width=8)")


def test_a_spec_must_be_a_string() -> None:
    with pytest.raises(UserError, match=r"but got 3$"):
        build(3, channels=3, size=32, num_classes=10)  # type: ignore[arg-type]


def test_python_warnings_are_suppressed(recwarn: pytest.WarningsRecorder) -> None:
    parse_spec("convnet(norm='\\d')")
    assert not recwarn.list


@given(st.one_of(st.text(max_size=30), st.text(alphabet="convnet(width=3,'\\ *[]{}:.1)-\n", max_size=30)))
@settings(max_examples=100)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        name, options = parse_spec(text)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert name.isidentifier()
        assert all(key.isidentifier() for key in options)


@st.composite
def specs(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(NETWORKS)))
    options = NETWORKS[name].options
    arguments = []
    for key in draw(st.permutations(sorted(options)))[: draw(st.integers(0, len(options)))]:
        values = {"width": st.integers(1, 16).map(lambda n: 4 * n), "depth": st.integers(1, 4)}
        value = draw(values[key] if key in values else st.sampled_from(options[key].choices))
        arguments.append(f"{key} = {value!r}")
    return f" {name}({', '.join(arguments)})" if arguments else name


@given(specs(), st.sampled_from([28, 32, 64]), st.sampled_from([1, 3]))
@settings(max_examples=60)
def test_canonical_spec_builds_the_same_network(spec: str, size: int, channels: int) -> None:
    full = canonical_spec(spec, size=size)
    assert canonical_spec(full, size=size) == full
    assert canonical_spec(full, size=8) == full  # no option depends on the size any more
    assert parse_spec(full)[1].keys() == NETWORKS[parse_spec(spec)[0]].options.keys()
    with torch.device("meta"):
        first, second = (build(name, channels=channels, size=size, num_classes=4) for name in (spec, full))
    assert str(first) == str(second)
    assert uses_batch_norm(spec) == uses_batch_norm(full) == uses_batch_norm(first) == ("'batch'" in full)


def test_canonical_spec_keeps_the_declared_order_of_options() -> None:
    expected = "convnet(width=64, depth=3, norm='batch', activation='relu', pooling='average')"
    assert canonical_spec("convnet(norm='batch', width=64)", size=32) == expected
    assert canonical_spec("resnet18", size=32) == "resnet18(norm='instance')"
    assert canonical_spec("lenet()", size=32) == "lenet"


@pytest.mark.parametrize(("size", "depth"), [(8, 2), (15, 2), (16, 3), (28, 3), (32, 3), (63, 3), (64, 4), (84, 4)])
def test_the_default_depth_depends_on_the_size(size: int, depth: int) -> None:
    assert f"depth={depth}" in canonical_spec("convnet", size=size)
    with torch.device("meta"):
        assert len(build("convnet", channels=3, size=size, num_classes=2).get_submodule("blocks")._modules) == depth


def test_display_names() -> None:
    names = [display_name(name) for name in NETWORKS]
    assert names == ["ConvNet", "AlexNet", "small AlexNet", "VGG-11", "ResNet-18", "ResNet-18AP", "LeNet", "MLP"]
    assert display_name("convnet(norm='batch')") == "ConvNetBN"
    assert display_name("convnet(norm='layer')") == "ConvNet"


def test_describe_networks_lists_defaults_and_choices() -> None:
    entries = {entry["name"]: entry for entry in describe_networks()}
    assert list(entries) == list(NETWORKS)
    assert entries["convnet"]["options"][:3] == [
        {"name": "width", "type": "int", "default": 128, "minimum": 1, "maximum": 4096},
        {"name": "depth", "type": "int", "default": 3, "minimum": 1, "maximum": 32},
        {
            "name": "norm",
            "type": "str",
            "default": "instance",
            "choices": ["none", "batch", "layer", "instance", "group"],
        },
    ]
    assert entries["lenet"]["options"] == []
    assert all(entry["description"] and "\n" not in entry["description"] for entry in entries.values())


def test_an_architecture_builds_a_network() -> None:
    network = NETWORKS["convnet"](channels=1, size=8, num_classes=3, width=4)
    assert isinstance(network, Network)
    assert network.num_features == 4 * 2 * 2
    with pytest.raises(UserError, match="cannot be 'widht'"):
        NETWORKS["convnet"](channels=1, size=8, num_classes=3, widht=4)


@pytest.mark.parametrize("spec", ["convnet(depth=6, norm='batch')", "vgg11(norm='batch')", "resnet18_ap(norm='batch')"])
def test_batch_norm_is_detected_from_the_modules_at_any_image_size(spec: str) -> None:
    assert uses_batch_norm(spec)
    assert not uses_batch_norm(spec.replace("batch", "instance"))


def test_a_network_too_deep_for_every_image_size_is_refused() -> None:
    with pytest.raises(UserError, match="needs images of at least"):
        uses_batch_norm("convnet(depth=32)")
