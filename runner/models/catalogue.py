"""The models this project ships a config for, as data, so that a person can list and choose."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner.config import ModelConfig
from runner.errors import ConfigError, ModelError
from runner.parsing import conf_dir, parse


def known() -> list[ModelConfig]:
    """Every ``conf/model/*.yaml`` that names a source, in the order of its file name.

    Raises:
        ConfigError: names the file that does not parse.
    """
    models: list[ModelConfig] = []
    for path in sorted((conf_dir() / "model").glob("*.yaml")):
        try:
            models.append(_read(path))
        except (ConfigError, YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"{path}: {error}") from error
    return [model for model in models if model.source is not None]


def _read(path: Path) -> ModelConfig:
    values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return cast(ModelConfig, parse(ModelConfig, cast(dict[str, Any], values)))


def named(name: str) -> ModelConfig:
    """The shipped model called ``name``.

    Raises:
        ModelError: there is none; the line names those there are, and the closest.
    """
    models = {model.name: model for model in known()}
    if name in models:
        return models[name]
    close = difflib.get_close_matches(name, models, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ModelError(f"there is no model {name}: {hint}conf/model has {', '.join(models)}")
