"""Most weights are a file of a Hugging Face repository: its own library downloads and caches them."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors

from runner.config import ModelConfig, SourceConfig
from runner.errors import ModelError
from runner.models.digests import digest
from runner.models.remedy import is_disk_full, no_room, not_as_promised, require_room, unavailable
from runner.models.split import parts, repository_parts


def cached(source: SourceConfig) -> Path | None:
    """The file in Hugging Face's own cache, if it and every further part of it are there."""
    assert source.repo is not None and source.file is not None
    names = repository_parts(source.file)
    try:
        found = [huggingface_hub.try_to_load_from_cache(source.repo, name) for name in names]
    except errors.HFValidationError:
        return None
    if all(isinstance(path, str) for path in found):
        return Path(str(found[0]))
    return None


def listed_size(model: ModelConfig, source: SourceConfig, entry: Path) -> int | None:
    """Bytes that the repository lists for the file and its further parts, None where it lists none.

    Raises:
        ModelError: offline, no such file, a licence that has to be accepted, or not the declared size.
    """
    assert source.repo is not None and source.file is not None
    try:
        sizes = [
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(source.repo, part)).size
            for part in repository_parts(source.file)
        ]
    except Exception as error:
        raise unavailable(model, entry, _reason(error, source)) from error
    listed_bytes = sum(size or 0 for size in sizes) or None
    if None not in (listed_bytes, source.size_bytes) and listed_bytes != source.size_bytes:
        raise ModelError(
            f"{source.file} in {source.repo} has {listed_bytes} bytes, not {source.size_bytes}: nothing was "
            f"downloaded; correct model.source in conf/model/{model.name}.yaml"
        )
    return listed_bytes


def fetch(model: ModelConfig, source: SourceConfig, entry: Path, size_bytes: int | None) -> Path:
    """Download the file, and every further part of it, into Hugging Face's cache.

    Args:
        model: named in the messages.
        source: repository and file.
        entry: where a person may put the file instead.
        size_bytes: what the file takes, for the check of the disk.

    Raises:
        ModelError: offline, no such file, a licence that has to be accepted, no room, or size or sha256 not
            what was declared.
    """
    assert source.repo is not None and source.file is not None
    folder = Path(constants.HF_HUB_CACHE)
    if size_bytes is not None:
        require_room(model, folder, size_bytes, "HF_HOME")
    try:
        first, *_ = [
            Path(huggingface_hub.hf_hub_download(source.repo, part)) for part in repository_parts(source.file)
        ]
    # What the transport raises differs from one version of the library to the next (OSError, httpx, xet).
    except Exception as error:
        if is_disk_full(error):
            raise no_room(model, folder, size_bytes, "HF_HOME") from error
        raise unavailable(model, entry, _reason(error, source)) from error
    size = sum(part.stat().st_size for part in parts(first))
    if source.size_bytes is not None and size != source.size_bytes:
        _delete(first)
        raise not_as_promised(model, "size in bytes", size, source.size_bytes)
    if source.sha256 is not None and (sha256 := digest(first)) != source.sha256:
        _delete(first)
        raise not_as_promised(model, "sha256", sha256, source.sha256)
    return first


def _delete(first: Path) -> None:
    """Remove the files and the blobs behind them, or the next fetch would hand them out again."""
    for part in parts(first):
        part.resolve().unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def _reason(error: Exception, source: SourceConfig) -> str:
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{source.repo}"
        return f"{source.repo} asks for its licence to be accepted (at {page}, then `hf auth login`)"
    if isinstance(error, errors.HFValidationError):
        return f"{source.repo} is no repository name (owner/name)"
    offline = isinstance(error, errors.LocalEntryNotFoundError)
    if not offline and isinstance(error, errors.EntryNotFoundError | errors.RepositoryNotFoundError):
        return f"Hugging Face has no {source.file} in {source.repo}"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return f"Hugging Face answered {error.response.status_code} for {source.file} in {source.repo}"
    return f"Hugging Face cannot be reached ({type(error).__name__})"
