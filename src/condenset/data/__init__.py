"""Datasets: ImageData and CondensedSet, loading by name or path, download and import."""

from condenset.data import datasets as datasets  # registers the datasets
from condenset.data.adapters import from_dataset
from condenset.data.arrays import from_arrays
from condenset.data.checking import DatasetReport, check_dataset
from condenset.data.download import download_dataset, download_file
from condenset.data.folders.reading import from_folder
from condenset.data.hold_out import hold_out
from condenset.data.lazy import LazyDataset, make_lazy_split
from condenset.data.listing import DatasetInfo, list_datasets
from condenset.data.loading import import_dataset, load, load_test_images
from condenset.data.options import LoadOptions
from condenset.data.sources import DATASETS, DatasetSource, Download, register_dataset
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
