"""Kernels run in triton's interpreter here, so that they are tested without a GPU."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
