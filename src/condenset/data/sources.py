"""The one table of named datasets: what each is, where its files lie and where they are to be had."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from condenset.data.images import read_imagenet, read_tinyimagenet
from condenset.data.raw import Raw
from condenset.data.readers import read_cifar10, read_cifar100, read_digits, read_fashionmnist, read_mnist
from condenset.errors import check_choice, check_path


@dataclass(frozen=True)
class Download:
    """A file to fetch to `path` in the data folder; an archive becomes the folder `unpacks_to`, of so many bytes."""

    url: str
    digest: str
    size: int
    path: str
    unpacks_to: str = ""
    unpacked_size: int = 0


@dataclass(frozen=True, kw_only=True)
class Source:
    """A named dataset; its files are looked for in the first of `homes` that holds all of `files`, .gz or not.

    shape: (C, H, W); mean, std: of pixels in 0..1, measured on train where None; by_hand: how to get it otherwise.
    """

    title: str
    num_classes: int
    num_train: int
    num_test: int
    shape: tuple[int, int, int]
    read: Callable[[Path, int | None], Raw]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    can_flip: bool = True
    homes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""

    @property
    def bundled(self) -> bool:
        """Whether it comes with an installed package, so that there is nothing to fetch."""
        return not self.files

    @property
    def download_bytes(self) -> int:
        return sum(item.size for item in self.downloads)

    def locate(self, folder: Path) -> Path | None:
        """The folder its files are in, under the data folder; None where one is missing."""
        return next((folder / home for home in self.homes if not self.missing(folder / home)), None)

    def missing(self, home: Path) -> list[str]:
        """Which of its files a folder lacks."""
        return [f for f in self.files if not (home / f).exists() and not (home / f"{f}.gz").exists()]


IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_downloads(address: str, folder: str, digests: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{address}{file}.gz", f"md5:{digest}", size, f"{folder}/raw/{file}.gz")
        for file, digest, size in zip(IDX_FILES, digests, sizes, strict=True)
    )


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SOURCES: dict[str, Source] = {
    "digits": Source(
        title="scikit-learn's handwritten digits",
        num_classes=10,
        num_train=1433,
        num_test=364,
        shape=(1, 8, 8),
        read=lambda folder, size: read_digits(),
        can_flip=False,
    ),
    "mnist": Source(
        title="MNIST handwritten digits",
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        shape=(1, 28, 28),
        read=lambda folder, size: read_mnist(folder),
        mean=(0.1307,),
        std=(0.3081,),
        can_flip=False,
        homes=("MNIST/raw", "MNIST", ""),
        files=IDX_FILES,
        downloads=_idx_downloads(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "MNIST",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            (9_912_422, 28_881, 1_648_877, 4_542),
        ),
    ),
    "fashionmnist": Source(
        title="Fashion-MNIST articles of clothing",
        num_classes=10,
        num_train=60_000,
        num_test=10_000,
        shape=(1, 28, 28),
        read=lambda folder, size: read_fashionmnist(folder),
        mean=(0.2861,),
        std=(0.3530,),
        homes=("FashionMNIST/raw", "FashionMNIST", ""),
        files=IDX_FILES,
        downloads=_idx_downloads(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "FashionMNIST",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            (26_421_880, 29_515, 4_422_102, 5_148),
        ),
    ),
    "cifar10": Source(
        title="CIFAR-10 small photographs",
        num_classes=10,
        num_train=50_000,
        num_test=10_000,
        shape=(3, 32, 32),
        read=lambda folder, size: read_cifar10(folder),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        homes=("cifar-10-batches-py", ""),
        files=("batches.meta", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                170_498_071,
                "cifar-10-python.tar.gz",
                "cifar-10-batches-py",
                190_000_000,
            ),
        ),
    ),
    "cifar100": Source(
        title="CIFAR-100 small photographs",
        num_classes=100,
        num_train=50_000,
        num_test=10_000,
        shape=(3, 32, 32),
        read=lambda folder, size: read_cifar100(folder),
        mean=(0.5071, 0.4866, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        homes=("cifar-100-python", ""),
        files=("meta", "train", "test"),
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                169_001_437,
                "cifar-100-python.tar.gz",
                "cifar-100-python",
                190_000_000,
            ),
        ),
    ),
    "tinyimagenet": Source(
        title="TinyImageNet photographs",
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
        shape=(3, 64, 64),
        read=read_tinyimagenet,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        homes=("tiny-imagenet-200", ""),
        files=("wnids.txt", "train", "val"),
        downloads=(
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                248_100_043,
                "tiny-imagenet-200.zip",
                "tiny-imagenet-200",
                400_000_000,
            ),
        ),
    ),
    "imagenet": Source(
        title="ImageNet-1K photographs, fitted to 64x64",
        num_classes=1000,
        num_train=1_281_167,
        num_test=50_000,
        shape=(3, 64, 64),
        read=read_imagenet,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        homes=("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ""),
        files=("train", "val"),
        by_hand="ask for it at image-net.org, then put its train/CLASS and val/CLASS folders in",
    ),
}


def find_source(name: str) -> str | None:
    """The key in SOURCES that a name stands for, whatever its case and hyphens: Fashion-MNIST, CIFAR_10."""
    key = name.lower().replace("-", "").replace("_", "")
    return key if key in SOURCES else None


def require_source(name: str) -> str:
    """The same, but an unknown name is an error with the nearest one."""
    key = find_source(name)
    if key is None:
        check_choice("dataset", name, SOURCES)
    assert key is not None
    return key


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where datasets are kept: the folder given, else $CONDENSET_DATA, else `condenset` in the user's cache folder."""
    chosen = data_dir if data_dir is not None else os.environ.get("CONDENSET_DATA")
    if not chosen:
        return _cache_folder() / "condenset"
    check_path(chosen)
    return Path(chosen).expanduser()


def _cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
