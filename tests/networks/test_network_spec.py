"""Specs: what they may say, what they mean spelled out, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.errors import UserError
from condenset.networks import NETWORKS, build, canonical, describe, title, uses_batch_norm
from condenset.networks.spec import read_spec

# spec -> what the message must hold
REFUSED = {
    "convnet(width=__import__('os').system('x'))": "a network must be written like",
    "convnet(width=open('x').read())": "a network must be written like",
    "convnet(": "a network must be written like",
    "convnet(128)": "a network must be written like",
    "convnet(*[1])": "a network must be written like",
    "convnet(**{'width': 3})": "a network must be written like",
    "convnet(width=3, width=4)": "a network must be written like",
    "convnet(width=depth)": "a network must be written like",
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
    "convent": "network must be one of convnet, alexnet, alexnet_small, vgg11, resnet18, resnet18_ap, lenet, mlp, but "
    "got 'convent'; did you mean 'convnet'?",
    "ConvNet": "did you mean 'convnet'?",
    "convnet(widht=3)": "but got 'widht'; did you mean 'width'?",
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
    "convnet(norm=['batch'])": "norm must be one of none, batch, layer, instance, group, but got ['batch']",
    "convnet(norm='\\d')": "norm must be one of",
    "convnet(activation='relo')": "did you mean 'relu'?",
    "convnet(pooling='avg')": "pooling must be one of none, max, average, but got 'avg'",
    "alexnet(norm='layer')": "norm must be one of none, batch, instance, but got 'layer'",
    "vgg11(norm='none')": "norm must be one of instance, batch, but got 'none'",
    "resnet18(average_pooling=True)": "an option of ResNet-18 must be one of norm, but got 'average_pooling'",
    "lenet(width=3)": "LeNet takes no options, but got 'width'",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_refused_in_one_line(spec: str) -> None:
    uses = (
        lambda: build(spec, channels=3, size=32, num_classes=10),
        lambda: canonical(spec, size=32),
        lambda: title(spec),
        lambda: uses_batch_norm(spec),
    )
    for use in uses:
        with pytest.raises(UserError) as caught:
            use()
        message = str(caught.value)
        assert REFUSED[spec] in message
        assert "\n" not in message


def test_a_spec_is_text() -> None:
    with pytest.raises(UserError, match=r"but got 3$"):
        build(3, channels=3, size=32, num_classes=10)  # type: ignore[arg-type]


def test_no_remarks_of_pythons_own(recwarn: pytest.WarningsRecorder) -> None:
    read_spec("convnet(norm='\\d')")
    assert not recwarn.list


@given(st.one_of(st.text(max_size=30), st.text(alphabet="convnet(width=3,'\\ *[]{}:.1)-\n", max_size=30)))
@settings(deadline=None, max_examples=300)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        name, options = read_spec(text)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert name.isidentifier()
        assert all(key.isidentifier() for key in options)


@st.composite
def specs(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(NETWORKS)))
    options = NETWORKS[name].options
    parts = []
    for key in draw(st.permutations(sorted(options)))[: draw(st.integers(0, len(options)))]:
        values = {"width": st.integers(1, 16).map(lambda n: 4 * n), "depth": st.integers(1, 4)}
        value = draw(values[key] if key in values else st.sampled_from(options[key].choices))
        parts.append(f"{key} = {value!r}")
    return f" {name}({', '.join(parts)})" if parts else name


@given(specs(), st.sampled_from([28, 32, 64]), st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=60)
def test_canonical_is_the_same_network_spelled_out(spec: str, size: int, channels: int) -> None:
    full = canonical(spec, size=size)
    assert canonical(full, size=size) == full
    assert canonical(full, size=8) == full  # nothing is left for the size to decide
    assert read_spec(full)[1].keys() == NETWORKS[read_spec(spec)[0]].options.keys()
    with torch.device("meta"):
        first, second = (build(s, channels=channels, size=size, num_classes=4) for s in (spec, full))
    assert str(first) == str(second)
    assert uses_batch_norm(spec) == uses_batch_norm(full) == uses_batch_norm(first) == ("'batch'" in full)


def test_canonical_spells_options_in_the_tables_order() -> None:
    expected = "convnet(width=64, depth=3, norm='batch', activation='relu', pooling='average')"
    assert canonical("convnet(norm='batch', width=64)", size=32) == expected
    assert canonical("resnet18", size=32) == "resnet18(norm='instance')"
    assert canonical("lenet()", size=32) == "lenet"


@pytest.mark.parametrize(("size", "depth"), [(8, 2), (15, 2), (16, 3), (28, 3), (32, 3), (63, 3), (64, 4), (84, 4)])
def test_the_default_depth_follows_from_the_size(size: int, depth: int) -> None:
    assert f"depth={depth}" in canonical("convnet", size=size)
    with torch.device("meta"):
        assert len(build("convnet", channels=3, size=size, num_classes=2).get_submodule("blocks")._modules) == depth


def test_titles() -> None:
    titles = [title(name) for name in NETWORKS]
    assert titles == ["ConvNet", "AlexNet", "small AlexNet", "VGG-11", "ResNet-18", "ResNet-18AP", "LeNet", "MLP"]
    assert title("convnet(norm='batch')") == "ConvNetBN"
    assert title("convnet(norm='layer')") == "ConvNet"


def test_describe_gives_names_defaults_and_choices() -> None:
    rows = {row.name: row for row in describe()}
    assert list(rows) == list(NETWORKS)
    assert rows["convnet"].options.startswith(
        "width=128, depth=3, norm='instance' [none, batch, layer, instance, group]"
    )
    assert rows["lenet"].options == ""
    assert all(row.text and "\n" not in row.text for row in rows.values())


def test_the_table_builds_too() -> None:
    network = NETWORKS["convnet"](channels=1, size=8, num_classes=3, width=4)
    assert network.num_features == 4 * 2 * 2
    with pytest.raises(UserError, match="but got 'widht'"):
        NETWORKS["convnet"](channels=1, size=8, num_classes=3, widht=4)
