"""Scoring texts: what each of their tokens costs under a KV mode, and against a reference without it."""
