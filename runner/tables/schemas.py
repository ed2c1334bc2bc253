"""What every table holds: one pyarrow schema a table, so that writer, reader and docs cannot drift apart.

Each field's metadata carries a ``description``. A field is nullable unless it is part of the key or every row
must know it. A row that is appended again with the same key replaces the earlier one as a whole.
"""

from __future__ import annotations

import pyarrow as pa

_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "uint": pa.uint64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "floats": pa.list_(pa.float64()),
}


def _schema(*columns: tuple[str, str, str]) -> pa.Schema:
    """Columns as (name, type, description); a ``!`` behind the type makes the column required."""
    return pa.schema(
        pa.field(name, _TYPES[kind.rstrip("!")], not kind.endswith("!"), {"description": description})
        for name, kind, description in columns
    )


_JOB_ID = ("job_id", "str!", "Digest of everything that can change an answer; the same in every table")
_PROMPT_ID = (
    "prompt_id",
    "str!",
    "The prompt's id in its file, with /1, /2... for the turns of a conversation; the same in every table",
)

JOBS = _schema(
    _JOB_ID,
    ("name", "str", "The job's name in the config"),
    ("status", "str!", "running, done, refused, failed or interrupted"),
    ("reason", "str", "Why the job was refused, failed or interrupted, in one line"),
    ("config", "str", "The resolved config as JSON"),
    ("overrides", "str", "The overrides as a person typed them, separated by spaces"),
    ("model", "str", "The model's name in the config"),
    ("model_digest", "str", "sha256 of the weights"),
    ("engine_version", "str", "Versions of llama-cpp-python and of the llama.cpp in it"),
    ("runner_version", "str", "Version of kvswarm"),
    ("host", "str", "Name of the machine"),
    ("cpu", "str", "The processor's model name"),
    ("n_threads", "int", "Threads that the engine computed with"),
    ("started_at", "str", "When the job started, ISO 8601 in UTC"),
    ("seconds", "float", "Wall time of the whole job in seconds"),
    (
        "prepare_s",
        "float",
        "Seconds spent preparing prompts by a context strategy that shortens; null where there is none",
    ),
    ("prepare_prefill_tokens", "int", "Tokens prefilled for that; they are not among prefill_tokens"),
    ("prepare_generated_tokens", "int", "Tokens sampled for that; they are not among generated_tokens"),
    ("load_s", "float", "Seconds spent loading weights and creating the context"),
    ("prefill_s", "float", "Seconds spent prefilling prompts, probes included"),
    ("probe_s", "float", "Of these, seconds spent on probes: asking a document what the questions look at"),
    ("decode_s", "float", "Seconds spent decoding answers"),
    (
        "prefill_tokens",
        "int",
        "Prompt tokens that were prefilled, each counted once however many workers share it",
    ),
    ("probe_tokens", "int", "Tokens that were decoded as probes; they are not among prefill_tokens"),
    ("generated_tokens", "int", "Tokens sampled by all workers"),
    ("peak_rss_bytes", "int", "Highest resident memory of the process tree in bytes"),
    ("peak_vram_bytes", "int", "Highest VRAM in use in bytes; null without a card"),
    ("accuracy", "float", "Share of the votes with a known answer that are correct; a tie is not"),
    (
        "mean_worker_accuracy",
        "float",
        "Mean over the same prompts of the share of workers that are right alone",
    ),
)

PLANS = _schema(
    _JOB_ID,
    ("model", "str", "The model's name in the config"),
    ("hardware", "str", "The hardware option"),
    ("kv_mode", "str", "The kv_mode option"),
    ("workers", "int", "Workers a prompt"),
    ("in_flight", "int", "Prompts decoded at once"),
    ("quant", "str", "Name of the model's file among its quants; empty where there is one"),
    ("processes", "int", "Processes with a context each: the workers of an isolated swarm, else 1"),
    ("window_policy", "str", "need, fixed or ladder"),
    ("window_tokens", "int", "How far one worker's positions reach: prompt and answer, in tokens"),
    ("prefix_tokens", "int", "Longest prompt in tokens, charged once a prompt"),
    ("suffix_tokens", "int", "Longest answer in tokens, charged once a worker"),
    ("policy", "str", "What decides which tokens stay in the cache; none where all do"),
    (
        "budget_cells",
        "int",
        "Cells that are kept of a prompt and an answer, at most; 0 where nothing is evicted",
    ),
    ("chunk_tokens", "int", "Tokens of prefill between two evictions; 0 where nothing is evicted"),
    (
        "granularity",
        "str",
        "Who chooses its own tokens: head, layer or token; empty where nothing is evicted",
    ),
    (
        "probe_tokens",
        "int",
        "Longest probe in tokens, which stands beside a chunk and what is kept; 0 without",
    ),
    (
        "prefill_tokens",
        "int",
        "Tokens that the prompts are prefilled with, probes included: each document as often as it is read; null "
        "where that is not known, as of conversations. Texts that are scored do not count",
    ),
    ("codec", "str", "none, or fp8 (emulated): FP8's numbers inside f16 cells"),
    ("codec_bytes", "int", "What the codec would take for these cells; kv_bytes is what is allocated"),
    ("cells", "int", "KV cells that are allocated"),
    ("sliding_cells", "int", "KV cells of the sliding-window layers' own cache; 0 where there is none"),
    ("kv_type_k", "str", "Type of the K cells"),
    ("kv_type_v", "str", "Type of the V cells"),
    ("flash_attn", "str", "on or off, after auto was resolved"),
    ("n_ubatch", "int", "Tokens in one physical batch"),
    ("n_seq_max", "int", "Sequences that the context can hold"),
    ("n_outputs", "int", "Tokens of one micro-batch whose logits are wanted, at most"),
    ("n_threads", "int", "Threads that the engine computes with"),
    ("n_gpu_layers", "int", "Layers offloaded to a card"),
    ("offload_kqv", "bool", "Whether the cache is where its layers are; false is in host memory"),
    ("swa_full", "bool", "Whether sliding-window layers keep the whole window"),
    ("weights", "str", "resident, or mapped: larger than the memory and paged from their file"),
    ("weights_bytes", "int", "Bytes of the weights"),
    ("kv_bytes", "int", "Bytes of the attention cells, all layers"),
    ("recurrent_bytes", "int", "Bytes of the recurrent states, all sequences"),
    ("compute_bytes", "int", "Bytes of the engine's compute buffers"),
    ("overhead_bytes", "int", "Bytes of everything else: vocabulary, samplers, the process itself"),
    ("mmproj_bytes", "int", "Bytes of a vision projector"),
    ("total_bytes", "int", "The sum, mapped weights included"),
    ("vram_bytes", "int", "What is charged to the cards"),
    (
        "ram_bytes",
        "int",
        "What is charged to RAM, or to unified memory; without mapped weights that do not fit",
    ),
    ("available_bytes", "int", "Bytes that the job may use, cards and RAM"),
    ("missing_bytes", "int", "Bytes by which the job does not fit; 0 where it does"),
    ("spill_bytes", "int", "Bytes of weights and cache displaced from a card to the host"),
    ("status", "str!", "fits, spilled or refused"),
    ("reason", "str", "Why the plan was refused or what it had to do, in one line"),
    ("source", "str", "Where KV and compute bytes come from: formula or dry_run"),
    ("sources", "str", "Where the bytes of every kind come from, in words"),
    ("llama_server", "str", "The llama-server command of the same plan"),
)

PLAN_STEPS = _schema(
    _JOB_ID,
    ("step", "int!", "Place of the step in the ladder, from 0"),
    ("remedy", "str", "What the step would do"),
    ("override", "str", "The override that does it"),
    ("saved_bytes", "int", "What the step alone takes off the memory that is short"),
    ("total_bytes", "int", "Total bytes with this step and the sufficient ones before it"),
    ("sufficient", "bool", "Whether the step belongs to the first combination that fits"),
    ("applied", "bool", "Whether the job was run with it (plan.apply=true)"),
    ("reason", "str", "What the step costs in quality or time"),
)

PROMPTS = _schema(
    _JOB_ID,
    _PROMPT_ID,
    (
        "group_id",
        "str",
        "Digest of the prompt's tokens and the job's settings: equal where the answers are equal",
    ),
    ("strategy", "str", "The context strategy that prepared the prompt"),
    ("prompt", "str", "The question as text"),
    ("document_digest", "str", "Digest of the document that the prompt is about; null without one"),
    (
        "document_tokens",
        "int",
        "Tokens of the document, or in a conversation of what stays in the cache for the next turn",
    ),
    ("tokens_in", "int", "Tokens before the strategy ran"),
    ("tokens_sent", "int", "Tokens that the workers saw"),
    ("reason", "str", "Why the document was sent whole, where the strategy shortens documents; empty else"),
    (
        "answer_in_context",
        "bool",
        "Whether a sentence of what was sent in the document's place says the right answer; null where there is "
        "no document or no answer with words to look for is known",
    ),
    (
        "kind",
        "str",
        "How answers are extracted: number, choice, boolean, regex, text; score: nothing is asked",
    ),
    ("expected", "str", "The right answer as a normalised key; null where none is known"),
)

STAGES = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("step", "int!", "Place of the stage in its prompt's preparation, from 0"),
    ("stage", "str!", "split, index, sections, search, rerank, summarise or assemble"),
    ("items_in", "int", "Documents, chunks, passages or summaries that went in"),
    ("items_out", "int", "What came out"),
    ("chars_in", "int", "Characters of the text that went in"),
    ("chars_out", "int", "Characters of what came out"),
    ("tokens_in", "int", "The model's tokens of the text that went in"),
    ("tokens_out", "int", "Tokens of what came out"),
    ("seconds", "float", "Seconds that the stage took"),
    ("prefill_tokens", "int", "Tokens that the model prefilled for it"),
    ("generated_tokens", "int", "Tokens that the model sampled for it"),
    ("cached", "bool", "Whether what came out had been kept from before"),
    ("detail", "str", "What there is to say of it, in one line"),
)

EXCERPTS = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("number", "int!", "Place of the excerpt in its prompt, from 0"),
    ("share", "str", "The share of the room it took: retrieved, summary or original"),
    (
        "first_char",
        "int",
        "Where it begins in the document, or what it is a summary of; in characters from 0",
    ),
    ("end_char", "int", "Where that ends"),
    ("section", "str", "Path of the headings that it stands below; empty without any, and of a summary"),
    (
        "rank",
        "int",
        "Place among all summaries or passages by how close they are to the question, from 0; null of what stands "
        "beside a passage that was found",
    ),
    (
        "score",
        "float",
        "By which it was ranked: BM25, the sum of reciprocal ranks, or the question's mean log-probability (nats)",
    ),
    ("dense_rank", "int", "Place in the search by meaning, from 0; null where it was not found so"),
    ("bm25_rank", "int", "Place in the search by words, from 0; null where it was not found so"),
    ("text", "str", "The excerpt"),
)

GENERATIONS = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("worker", "int!", "The worker's index in its swarm, from 0"),
    ("text", "str", "The answer as generated"),
    ("answer", "str", "The extracted answer as a normalised key; null is an abstention"),
    ("seed", "uint", "Seed of the worker's sampler"),
    ("prompt_tokens", "int", "Tokens of the prompt that the worker answered"),
    (
        "prefill_tokens",
        "int",
        "Tokens that this worker caused to be prefilled: the group's for worker 0, else 0",
    ),
    ("generated_tokens", "int", "Tokens sampled"),
    (
        "mean_logprob",
        "float",
        "Mean log-probability (nats) of the sampled tokens in the model's own distribution at temperature 1",
    ),
    (
        "support",
        "float",
        "How far what was sent of the document says the answer, from 0 to 1; null without a document, and of an "
        "abstention or an answer without words to look for",
    ),
    ("finish_reason", "str", "stop, length, interrupted or error"),
    ("status", "str!", "ok, truncated, interrupted or failed"),
    ("seconds", "float", "Seconds from the group's start to this worker's last token"),
)

VOTES = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("tally_id", "str!", "Digest of the rule and its options"),
    ("rule", "str!", "The rule that counted"),
    ("winner", "str", "The winning key; null on a tie or where every worker abstained"),
    ("votes", "int!", "Votes for the winner, or for each of the tied"),
    ("workers", "int!", "Workers that were asked"),
    ("margin", "float", "(votes of the winner - votes of the runner-up) / ballots cast; 0 on a tie"),
    ("agreement", "float", "Votes of the winner / ballots cast; 0 where none was cast"),
    ("tie", "bool!", "Whether several answers share the lead"),
    ("abstained", "int!", "Workers without an answer that could be read"),
    ("correct", "bool", "Whether the winner is the expected answer; null where none is known"),
    (
        "mean_worker_correct",
        "float",
        "Share of the workers whose own answer is right, abstentions counted as wrong",
    ),
    ("expected", "str", "The right answer as a normalised key"),
)

GROWTH = _schema(
    _JOB_ID,
    ("prompt_id", "str!", "The turn before which the decision was taken"),
    ("step", "int!", "Place of the decision in its conversation, from 0"),
    ("turn", "int!", "The turn's number, from 1"),
    (
        "action",
        "str!",
        "grow: to the next rung; hold: not yet; refused: no larger window is to be had; "
        "compress: a summary took the place of the earlier turns",
    ),
    ("from_window", "int", "The window before, in tokens"),
    ("to_window", "int", "The window after, in tokens"),
    ("session_tokens", "int", "Tokens of the conversation so far"),
    ("occupancy", "float", "session_tokens / from_window"),
    (
        "decode_tok_s",
        "float",
        "Tokens a second that one sequence was given in the last turn; null before it was measured",
    ),
    ("needed_bytes", "int", "What the next rung's plan needs; null where it was not asked for"),
    ("available_bytes", "int", "Bytes that it may use, what the present context holds given back"),
    (
        "reprefill_tokens",
        "int",
        "Tokens of the history that were prefilled again in the larger window; null where there was no growth",
    ),
    ("reprefill_s", "float", "Seconds that took"),
    ("reason", "str", "Why, in one line"),
    ("summary", "str", "The text that took the place of the earlier turns; null but for compress"),
)

EVICTIONS = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("step", "int!", "Number of the round, from 0; a policy evicts after every chunk and every interval"),
    ("phase", "str", "prefill or decode"),
    ("chunk_tokens", "int", "What the text has gone on by since the round before"),
    ("position", "int", "True position in the text that was reached"),
    ("kept_cells", "int", "Cells of the prompt and a worker's answer that stay"),
    ("dropped_cells", "int", "Cells that were freed"),
    ("oldest_kept", "int", "Smallest true position kept that is no sink, over all layers and heads"),
    ("oldest_kept_median", "float", "The same of each layer and head, and of those the median"),
    ("score_q10", "float", "10 % quantile of the scores of what stays by its score; null where nothing does"),
    ("score_q50", "float", "Their median"),
    ("score_q90", "float", "Their 90 % quantile"),
    (
        "turnover",
        "float",
        "Share of the tokens kept by their score, neither sinks nor recent, that were not among them the round "
        "before",
    ),
    ("turnover_min", "float", "The same of the layer and head where it is least"),
    ("turnover_max", "float", "The same of the layer and head where it is most"),
    (
        "frozen",
        "bool",
        "Alarm: what is kept has hardly turned over for several rounds while the text went on",
    ),
    (
        "kept_by_part",
        "floats",
        "Share of what stays, over all layers and heads, that comes from each tenth of the text so far; sinks and "
        "recent tokens are included, a worker's own tokens among several workers' are not",
    ),
    ("probe_tokens", "int", "Tokens that were decoded as probes since the round before"),
)

SURVIVORS = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("layer", "int!", "The block of an attention layer, from 0"),
    ("head", "int!", "The KV head in it, from 0"),
    (
        "position",
        "int!",
        "True position in the prompt of a token that the head kept at the last eviction from the document; of the "
        "prompt where it has no document or that fitted",
    ),
    ("token", "str", "The token's text; bytes that are no whole character are written \\xNN"),
    (
        "score",
        "float",
        "The policy's score, before it was averaged over neighbours; null where the token stayed for what it is "
        "(a sink, recent) or could not be judged yet",
    ),
    (
        "sampled",
        "float",
        "Share of the tokens that the head kept which have a row: each was as likely as any other",
    ),
)

SCORES = _schema(
    _JOB_ID,
    _PROMPT_ID,
    ("text_digest", "str", "Digest of the text's tokens and of which are scored: equal where rows compare"),
    ("text_tokens", "int", "Tokens of the text"),
    ("tokens", "int!", "Tokens that were scored, the last of the text"),
    (
        "nll",
        "float",
        "Mean negative log-likelihood of the scored tokens in nats, each after the text before it",
    ),
    ("ppl", "float", "Perplexity: exp(nll)"),
    (
        "kl_to_reference",
        "float",
        "Mean over the tokens of KL(reference || this mode) in nats; null without a reference",
    ),
    ("kl_q50", "float", "Median over the tokens of the same"),
    ("kl_q90", "float", "90 % quantile over the tokens"),
    ("kl_q99", "float", "99 % quantile over the tokens"),
    ("top1_agreement", "float", "Share of the tokens whose most likely token is the reference's"),
    ("nll_reference", "float", "nll of the same tokens under the reference"),
    (
        "floor_kl",
        "float",
        "KL of the reference to itself in another micro-batch size: no smaller KL means anything",
    ),
    (
        "floor_top1_agreement",
        "float",
        "Top-1 agreement of the reference with itself in that micro-batch size",
    ),
    ("floor_nll", "float", "nll under the reference in that micro-batch size"),
    ("reference", "str", "What the reference is, or none and why"),
    ("seconds", "float", "Seconds that the text took under the mode, without its reference"),
    ("status", "str!", "ok, or interrupted: then the tokens that were scored by then"),
    ("token_nll", "floats", "Negative log-likelihood of each scored token in nats"),
)

TRACES = _schema(
    _JOB_ID,
    ("process", "str!", "Which process was sampled, with its children: runner-PID"),
    ("t_s", "float!", "Seconds since the job started"),
    (
        "phase",
        "str",
        "What the job was doing: prepare, load, prefill, grow, probe, decode, score or idle",
    ),
    ("rss_bytes", "int", "Resident memory of the process tree in bytes"),
    ("vram_bytes", "int", "VRAM in use in bytes; null without a card"),
    ("kv_cells_used", "int", "KV cells in use"),
    ("kv_bytes", "int", "Bytes of the KV cells in use"),
    ("active_sequences", "int", "Sequences that are decoding"),
    (
        "tok_s",
        "float",
        "Tokens a second of the last batch: prefilled in phase prefill or grow, scored in score, else generated",
    ),
)

SCHEMAS: dict[str, pa.Schema] = {
    "jobs": JOBS,
    "plans": PLANS,
    "plan_steps": PLAN_STEPS,
    "prompts": PROMPTS,
    "stages": STAGES,
    "excerpts": EXCERPTS,
    "generations": GENERATIONS,
    "votes": VOTES,
    "growth": GROWTH,
    "evictions": EVICTIONS,
    "survivors": SURVIVORS,
    "scores": SCORES,
    "traces": TRACES,
}

KEYS: dict[str, tuple[str, ...]] = {
    "jobs": ("job_id",),
    "plans": ("job_id",),
    "plan_steps": ("job_id", "step"),
    "prompts": ("job_id", "prompt_id"),
    "stages": ("job_id", "prompt_id", "step"),
    "excerpts": ("job_id", "prompt_id", "number"),
    "generations": ("job_id", "prompt_id", "worker"),
    "votes": ("job_id", "prompt_id", "tally_id"),
    "growth": ("job_id", "prompt_id", "step"),
    "evictions": ("job_id", "prompt_id", "step"),
    "survivors": ("job_id", "prompt_id", "layer", "head", "position"),
    "scores": ("job_id", "prompt_id"),
    "traces": ("job_id", "process", "t_s"),
}
