"""Datasets: ImageData and CondensedSet, loading by name or path, download and import."""

from condenset.data import datasets as datasets  # registers the datasets
from condenset.data.datasets.download import download_dataset, download_file
from condenset.data.datasets.listing import DatasetInfo, list_datasets
from condenset.data.datasets.sources import DATASETS, DatasetSource, Download, register_dataset
from condenset.data.folders.reading import from_folder
from condenset.data.reading.adapters import from_dataset
from condenset.data.reading.arrays import from_arrays
from condenset.data.reading.checking import DatasetReport, check_dataset
from condenset.data.reading.hold_out import hold_out
from condenset.data.reading.lazy import LazyDataset, make_lazy_split
from condenset.data.reading.loading import import_dataset, load, load_test_images
from condenset.data.reading.options import LoadOptions
from condenset.data.split import train_val_split
from condenset.io.user_directories import data_directory

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "DatasetReport",
    "DatasetSource",
    "Download",
    "LazyDataset",
    "LoadOptions",
    "check_dataset",
    "data_directory",
    "download_dataset",
    "download_file",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "hold_out",
    "import_dataset",
    "list_datasets",
    "load",
    "load_test_images",
    "make_lazy_split",
    "register_dataset",
    "train_val_split",
]
