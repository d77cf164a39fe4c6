"""Everything that decides an experiment's result, and its written form, experiment.toml."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path

from condenset.errors import UserError, check, check_choice, whole
from condenset.experiments import SCALES, find, wishes_for
from condenset.plans import Wishes, read_settings, toml_lines
from condenset.version import VERSION


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which experiment, on what, how large; memory bounds it without changing its result."""

    experiment: str
    dataset: str
    scale: str
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    memory: int | None = None
    size: int | None = None
    data_dir: str | None = None
    fingerprint: str = ""
    test_fingerprint: str = ""  # none: it is an older experiment's
    methods: tuple[str, ...] = ()  # none: those of the experiment
    ipc: tuple[int, ...] = ()  # none: those of the scale
    set: tuple[str, ...] = ()  # FIELD=VALUE or METHOD.FIELD=VALUE
    nets: int | None = None  # this and what follows: None as the scale has it
    epochs: int | None = None
    whole_epochs: int | None = None
    sets: int | None = None

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name in ("methods", "ipc", "set"):
                of, what = (int, "whole numbers") if item.name == "ipc" else (str, "texts")
                listed = isinstance(value, (list, tuple)) and all(type(each) is of for each in value)
                check(listed, f"{item.name} must be a list of {what}", value)
                object.__setattr__(self, item.name, tuple(value))
                continue
            kind = "a whole number" if "int" in str(item.type) else "text"
            fits = isinstance(value, int if kind != "text" else str) and not isinstance(value, bool)
            check(fits or (value is None and item.default is None), f"{item.name} must be {kind}", value)

    @property
    def wishes(self) -> Wishes:
        """What is asked of the experiment beside its scale."""
        general, by_method = read_settings(self.set)
        protocol = {"nets": self.nets, "epochs": self.epochs}
        experiment = find(self.experiment)
        if self.sets is not None:
            whole("sets", self.sets, 1)
            check(experiment.repeated, "this experiment takes no number of sets", self.sets)
        return wishes_for(
            experiment,
            methods=self.methods,
            ipcs=tuple(dict.fromkeys(self.ipc)),
            recipe=general,
            by_method=by_method,
            protocol={key: value for key, value in protocol.items() if value is not None},
            whole_epochs=self.whole_epochs,
        )


def to_toml(settings: Settings) -> str:
    """The settings as experiment.toml."""
    head = f"# condenset {VERSION}: 'condenset resume' with this file's folder goes on with the experiment"
    return "\n".join([head, *toml_lines(dataclasses.asdict(settings))]) + "\n"


def from_toml(path: Path) -> Settings:
    """Read settings back; whatever is none is refused in a line."""
    try:
        return Settings(**tomllib.loads(path.read_text(encoding="utf-8")))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise UserError(f"{path} is not an experiment of condenset: {error}") from None
