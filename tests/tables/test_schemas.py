import re
from dataclasses import fields

import pytest

from runner.tables import KEYS, SCHEMAS, Tables

# What design.md promises to others.
PROMISED = {
    "plans": "model hardware kv_mode workers in_flight window_tokens cells kv_type_k kv_type_v flash_attn "
    "weights_bytes kv_bytes recurrent_bytes compute_bytes overhead_bytes total_bytes spill_bytes status "
    "reason source llama_server",
    "generations": "text answer seed prompt_tokens prefill_tokens generated_tokens mean_logprob "
    "support finish_reason status",
    "votes": "rule winner votes workers margin agreement tie abstained correct",
    "growth": "prompt_id step turn action from_window to_window session_tokens occupancy decode_tok_s "
    "needed_bytes available_bytes reprefill_tokens reprefill_s reason",
    "evictions": "step phase position kept_cells dropped_cells oldest_kept oldest_kept_median score_q10 "
    "score_q50 score_q90 turnover turnover_min turnover_max frozen kept_by_part probe_tokens",
    "survivors": "layer head position token score sampled",
    "jobs": "prefill_s prefill_tokens probe_s probe_tokens",
    "scores": "tokens nll ppl kl_to_reference top1_agreement",
    "traces": "phase t_s rss_bytes vram_bytes kv_cells_used kv_bytes active_sequences tok_s",
}


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_described_and_named_in_snake_case(table: str) -> None:
    for field in SCHEMAS[table]:
        assert field.metadata[b"description"]
        assert re.fullmatch(r"[a-z][a-z0-9_]*", field.name)


@pytest.mark.parametrize("table", SCHEMAS)
def test_keys_are_required_columns(table: str) -> None:
    assert all(not SCHEMAS[table].field(key).nullable for key in KEYS[table])


@pytest.mark.parametrize("table", PROMISED)
def test_promised_columns_exist(table: str) -> None:
    assert set(PROMISED[table].split()) <= set(SCHEMAS[table].names)


def test_tables_has_a_frame_for_every_schema() -> None:
    assert [field.name for field in fields(Tables)] == list(SCHEMAS) == list(KEYS)
