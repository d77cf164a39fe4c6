"""Architecture search: rank networks by training them on a condensed set."""

from condenset.search.ranking import RankedArchitecture, Ranking, rank

__all__ = ["RankedArchitecture", "Ranking", "rank"]
