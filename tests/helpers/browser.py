"""Open pages in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a browser. Without Chromium the test is skipped; under CI=true it fails."""
    path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path is None:
        message = "no Chromium: install Debian's package chromium for the browser tests"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
