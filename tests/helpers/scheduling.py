"""Distribute tests over processes: tests that share a slow fixture run in the same process.

The mark `xdist_group` of pytest-xdist 3.8 has no effect with pytest 9.2, which ignores changes of node ids.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

GROUPS = ("tests/cluster/", "tests/docs/test_site.py", "browser.py")  # parts of paths


class GroupScheduling(LoadScopeScheduling):
    """Run the tests of a group in one process, and any other test where a process is free."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((group for group in GROUPS if group in path), nodeid)
