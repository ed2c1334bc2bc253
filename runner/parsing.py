"""From composed values to checked dataclasses, and where the YAML they are composed from lies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from runner.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6,
          "gb": 10**9, "tb": 10**12}  # fmt: skip


def parse_bytes(value: Any) -> Any:
    """``"12GiB"``, ``"512 MB"`` or plain bytes as an int; anything else is returned for the validator to refuse.

    Raises:
        ValueError: a unit that does not exist.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{value!r} is no size; write bytes or a unit, for example 12GiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse(cls: type[Any], values: dict[str, Any]) -> Any:
    """``values`` as the frozen dataclass ``cls``.

    Raises:
        ConfigError: names the first key that is wrong, its value and what would be right.
    """
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "unexpected_keyword_argument":
            raise ConfigError(f"{key}: there is no such key") from None
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{key}={first['input']!r}: {reason[0].lower()}{reason[1:]}") from None


def conf_dir() -> Path:
    """The folder of YAML groups: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
