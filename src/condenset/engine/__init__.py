"""Devices, precision, random streams, compilation and memory planning."""

from condenset.engine.device import ComputeDevice

__all__ = ["ComputeDevice"]
