"""Two examples for the help of each command, each with a comment."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "condenset": (
        ("condenset run digits --ipc 1,10", "The first run: 2 minutes on a laptop, without a download"),
        ("condenset run photos/ --size 32 --dry-run", "The plan for your own images, in one folder per class"),
    ),
    "condenset run": (
        ("condenset run digits --ipc 1,10", "Learn 1 and 10 images per class, and score them"),
        ("condenset run photos/ --size 32 --method dmplus --protocol modern", "Your own images with the best method"),
    ),
    "condenset compare": (
        ("condenset compare digits --ipc 10 --nets 3", "All methods but variants of dm"),
        ("condenset compare digits --method random,dm,dmplus --ipc 1,10", "Some methods at two sizes"),
    ),
    "condenset condense": (
        ("condenset condense digits --ipc 10 --out runs/ten", "Learn 10 images per class with dm"),
        ("condenset condense photos/ --size 64 --ipc-share 0.01 --memory 4GiB", "A hundredth of a large dataset"),
    ),
    "condenset plan": (
        ("condenset plan digits --ipc 10", "Time, memory and disk on this machine"),
        ("condenset plan --classes 1000 --images 1300 --size 64 --ipc 10 --gpus 8", "A dataset that you do not have"),
    ),
    "condenset resume": (
        ("condenset resume runs/digits", "After Ctrl-C, a kill or a power cut"),
        ("condenset resume runs/digits --device cpu", "On another device"),
    ),
    "condenset status": (
        ("condenset status runs/digits", "Progress, remaining time and accuracies"),
        ("condenset status runs/digits --watch", "Until the run ends"),
    ),
    "condenset serve": (
        ("condenset serve", "All runs below runs/ in the browser"),
        ("condenset serve results --port 9000 --no-open", "Another directory; open the address yourself"),
    ),
    "condenset report": (
        ("condenset report runs/digits", "Write report.html into the directory of the run"),
        ("condenset report runs/digits --out digits.html", "Write it elsewhere"),
    ),
    "condenset evaluate": (
        ("condenset evaluate runs/digits --network convnet,mlp", "All sets of a run on two networks"),
        ("condenset evaluate runs/digits/sets/random-1.safetensors --nets 3", "One set on three networks"),
    ),
    "condenset show": (
        ("condenset show runs/digits", "List and draw the sets of a run"),
        ("condenset show runs/digits/sets/random-1.safetensors --out one.png", "Draw one set"),
    ),
    "condenset export": (
        ("condenset export runs/digits/sets/random-1.safetensors digits --to folder", "PNG files and exact values"),
        ("condenset export cifar10-dm-10 cifar10.npz", "A finished set as NumPy arrays"),
    ),
    "condenset import-set": (
        (
            "condenset import-set set.pt --normalization cifar10 --out set.safetensors",
            "A set of another repository",
        ),
        (
            "condenset import-set x.pt y.pt --normalization none --out set.safetensors",
            "Images and labels in two files",
        ),
    ),
    "condenset methods": (
        ("condenset methods dm", "The settings of dm, with defaults"),
        ("condenset methods --json", "All methods and settings for programs"),
    ),
    "condenset paper": (
        ("condenset paper", "List the tables and figures"),
        ("condenset paper sizes --scale tiny", "Test one on digits; --scale paper is the full protocol"),
    ),
    "condenset doctor": (
        ("condenset doctor", "Versions, devices, optional parts and free disk"),
        ("condenset doctor --json", "The same for programs"),
    ),
    "condenset networks": (
        ("condenset networks", "All networks, with their options"),
        ("condenset networks --json", "The same for programs"),
    ),
    "condenset networks train-pool": (
        ("condenset networks train-pool digits --out pool --num 5", "Five networks"),
        ("condenset networks train-pool digits --out pool --num 5 --network mlp", "Another architecture"),
    ),
    "condenset data": (
        ("condenset data list", "The datasets, and which of them are on this machine"),
        ("condenset data get cifar10", "Download one"),
    ),
    "condenset data list": (
        ("condenset data list", "Registered and imported datasets"),
        ("condenset data list --data-dir datasets --json", "Those in another directory, for programs"),
    ),
    "condenset data get": (
        ("condenset data get cifar10", "Download to the user's cache"),
        ("condenset data get tinyimagenet --data-dir datasets", "Download elsewhere"),
    ),
    "condenset data check": (
        ("condenset data check photos/ --size 32", "Classes, sizes, duplicates and unreadable files"),
        ("condenset data check digits", "A dataset by its name"),
    ),
    "condenset data import": (
        ("condenset data import photos/ photos --size 64 --test-share 0.2", "A folder, with a fifth for the test"),
        ("condenset data import digits mydigits --no-flip", "Text and digits must not be mirrored"),
    ),
}
