"""Without a GPU kernels run in triton's interpreter, so that they are tested all the same."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tiny tensors threads only wait for each other; torch reads it once

import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
