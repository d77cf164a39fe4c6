"""Kernels run in triton's interpreter here, so that they are tested without a GPU."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tiny tensors threads only wait for each other
