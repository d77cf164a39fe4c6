"""The version of this library, where it is installed and where it is run from its source tree."""

VERSION = "0.1.0"
