"""Errors of ALFWorld games and data folders."""


class GameFileError(ValueError):
    """A game file is corrupt: truncated JSON, missing keys, or PDDL that does not parse."""


class UnsolvableGameError(GameFileError):
    """The game's own file says ``solvable: false``; no engine can play it."""


class UnsupportedGameError(GameFileError):
    """The native engine does not know this game's domain, grammar or goal."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} It is not a game in one of ALFWorld's published forms, and the native engine "
            "refuses to guess."
        )


class DataFolderError(FileNotFoundError):
    """The data folder is missing or half-extracted."""
