"""The printed command, read as llama-server reads it; by hand it was run on the pinned build's own binary."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from planned import AUTO, DENSE, HYBRID, MIB, MIXTURE, Q8, SMALL, again, card, host, job, model, plan, unified

from runner.config import SpillConfig
from runner.planning.hardware.budget import GIB
from runner.planning.llama_server import server
from runner.planning.model.profile import Layer, ModelProfile
from runner.planning.plan import Plan
from runner.planning.speculative import DECODE, STACKED

ROOMY = card(1000 * GIB, 1000 * GIB)
DRAFTING = model(list(HYBRID.blocks), mtp=300 * MIB)
SLIDING = ModelProfile(
    "gemma3", (*((Layer("sliding", 1, 256, 256),) * 15), *((Layer("full", 1, 256, 256),) * 3)), n_layer=18,
    n_embd=640, n_head=4, n_ff=2048, n_vocab=262_144, n_ctx_train=32_768, weights_bytes=246_587_904,
    sliding_window=512,
)  # fmt: skip
SWITCHES = {"--kv-unified", "--no-kv-offload", "--swa-full", "--no-mmproj", "--backend-sampling",
            "--spec-draft-backend-sampling"}  # fmt: skip


def flags(made: Plan) -> dict[str, str]:
    """Options and their values; a switch has none."""
    words = shlex.split(made.llama_server)
    assert words.pop(0) == "llama-server"
    found: dict[str, str] = {}
    while words:
        name = words.pop(0)
        assert name.startswith("-") and name not in found, name
        found[name] = "" if name in SWITCHES else words.pop(0)
    return found


def test_a_plain_job_on_the_host() -> None:
    made = plan(SMALL, host(), workers=5, prefix=400, suffix=32, n_threads=2)
    assert flags(made) == {
        "-m": "MODEL.gguf", "-c": "2304", "--parallel": "5", "--kv-unified": "", "-ctk": "f16", "-ctv": "f16",
        "-fa": "on", "-ngl": "0", "--fit": "off", "-b": "512", "-ub": "512", "--cache-ram": "0", "-t": "2",
    }  # fmt: skip


def test_it_carries_the_modes_of_the_plan() -> None:
    made = flags(plan(SMALL, host(), kv_mode=replace(Q8, v="f16"), flash_attn=False, n_ubatch=128))
    assert (made["-ctk"], made["-ctv"], made["-fa"]) == ("q8_0", "f16", "off")
    assert (made["-b"], made["-ub"]) == ("128", "128")


def test_bytes_and_cells_are_what_the_server_logs() -> None:
    """Cells, K and V as the pinned llama-server printed them for these two commands."""
    small = server(plan(SMALL, host(), workers=5, prefix=400, suffix=32, kv_mode=Q8))
    assert (small.cells, small.slots) == (2304, 5)
    assert round(small.cache_bytes / MIB, 2) == 26.89
    sliding = plan(SLIDING, host(), workers=3, prefix=1500, suffix=32, n_seq_max=4)
    assert (server(sliding).cells, round(server(sliding).cache_bytes / MIB, 2)) == (4608, 43.5)
    whole = plan(
        SLIDING,
        host(),
        workers=3,
        prefix=1500,
        suffix=32,
        kv_mode=replace(Q8, k="f16", v="f16", swa_full=True),
    )
    assert round(server(whole).cache_bytes / MIB, 2) == 81.0
    assert "--swa-full" in flags(whole) and "--swa-full" not in flags(sliding)


def test_on_a_card_all_layers_and_the_head() -> None:
    assert flags(plan(DENSE, ROOMY))["-ngl"] == "17"
    assert flags(plan(DRAFTING, ROOMY))["-ngl"] == "18", "llama.cpp counts draft heads"


def test_experts_on_the_host_by_their_own_option() -> None:
    made = plan(MIXTURE, card(plan(MIXTURE, ROOMY).vram_bytes - 900 * MIB), spill=AUTO)
    found = flags(made)
    assert (found["--n-cpu-moe"], found["-ngl"]) == ("3", "17") and "-ot" not in found


def test_other_tensors_by_pattern() -> None:
    made = plan(HYBRID, card(plan(HYBRID, ROOMY).vram_bytes - 300 * MIB), spill=AUTO)
    found = flags(made)
    pattern, _, buffer = found["-ot"].partition("=")
    assert buffer == "CPU" and "--n-cpu-moe" not in found and "," not in pattern
    assert re.search(pattern, "blk.0.ffn_up.weight") and not re.search(pattern, "blk.3.ffn_up.weight")


def test_experts_of_several_cards_by_pattern() -> None:
    """``--n-cpu-moe`` would empty the first card and leave the last one too full."""
    need = plan(MIXTURE, card(1000 * GIB, cards=2)).vram_bytes + 470 * MIB
    made = plan(MIXTURE, card(need - 900 * MIB, cards=2), spill=AUTO)
    assert made.spill is not None and made.spill.n_cpu_moe == 3
    pattern = flags(made)["-ot"].partition("=")[0]
    hit = [n for n in range(16) if re.search(pattern, f"blk.{n}.ffn_up_exps.weight")]
    assert hit == [0, 1, 9] and "--n-cpu-moe" not in flags(made)


def test_whole_blocks_and_the_cache_on_the_host() -> None:
    room = card(plan(DENSE, ROOMY).vram_bytes - 500 * MIB)
    assert flags(plan(DENSE, room, spill=AUTO))["-ngl"] == "15"
    kv = flags(plan(DENSE, ROOMY, spill=SpillConfig(kv=True)))
    assert "--no-kv-offload" in kv and kv["-ngl"] == "17"


def test_a_slot_has_a_window_and_the_slots_have_the_room_there_is() -> None:
    """Ours shares the prompt's cells between five workers; the server's slots have a window each."""
    job = {"workers": 5, "prefix": 60_000, "suffix": 1000, "kv_mode": Q8}
    ours = plan(DENSE, ROOMY, **job)
    assert server(ours).slots == 5 and server(ours).cells == 5 * 61_000 // 256 * 256 + 256
    tight = plan(DENSE, card(ours.vram_bytes), **job)
    assert tight.status == "fits" and server(tight).slots == 1
    assert flags(tight)["--parallel"] == "1" and int(flags(tight)["-c"]) <= tight.cells
    windows = [
        server(plan(DENSE, card(ours.vram_bytes + more * GIB // 2), **job)).slots for more in range(12)
    ]
    assert windows == sorted(windows) and set(windows) == {1, 2, 3, 4, 5}
    for more in range(12):
        roomier = plan(DENSE, card(ours.vram_bytes + more * GIB // 2), **job)
        beyond = server(roomier).cache_bytes - roomier.kv_bytes
        assert beyond <= more * GIB // 2


def test_prompts_in_flight_are_slots_too() -> None:
    assert server(plan(SMALL, host(), workers=3, in_flight=4)).slots == 12


def test_a_refused_plan_shows_what_was_refused() -> None:
    made = plan(DENSE, card(GIB), workers=5)
    assert made.status == "refused" and flags(made)["--parallel"] == "5" and flags(made)["-ngl"] == "17"


def drafting(hardware: Any, profile: ModelProfile = DRAFTING, **changes: Any) -> Plan:
    return plan(profile, hardware, **({"speculative": "auto", "kv_mode": Q8} | changes))


def test_heads_draft_in_the_faster_posture() -> None:
    found = flags(drafting(ROOMY))
    assert (found["-b"], found["-ub"]) == ("4096", "2048")
    assert (found["--spec-type"], found["--spec-draft-n-max"]) == ("draft-mtp", "3")
    assert "--backend-sampling" in found and "--spec-draft-backend-sampling" in found
    assert (found["-ctkd"], found["-ctvd"]) == ("q8_0", "q8_0"), "the draft's cache is of the same types"


def test_drafting_is_off_where_it_cannot_or_must_not() -> None:
    for made in (drafting(ROOMY, speculative="off"), drafting(ROOMY, HYBRID), drafting(card(GIB))):
        assert not [name for name in flags(made) if name.startswith("--spec") or name == "-ctkd"]


def test_the_posture_is_the_one_that_fits_beside_the_window() -> None:
    """Between the two postures' prices there is a card for each; the window stays what it is."""
    need = drafting(ROOMY).vram_bytes
    found = [server(drafting(card(need + more * 100 * MIB, 50 * GIB))).posture for more in range(40)]
    assert found[0] is None and found[-1] is STACKED
    order = [posture for n, posture in enumerate(found) if n == 0 or posture is not found[n - 1]]
    assert order == [None, DECODE, STACKED]
    least = found.index(DECODE) * 100 * MIB
    assert least >= DECODE.logits_bytes(100_000) + DRAFTING.mtp_bytes
    assert {flags(drafting(card(need + more * GIB)))["-c"] for more in range(5)} == {"1280"}


def test_a_drafting_server_keeps_the_states_of_what_it_drafts() -> None:
    """The pinned llama-server logged four times the state, and a cache for the head."""
    plain, draft = server(drafting(ROOMY, speculative="off")), server(drafting(ROOMY))
    head = DRAFTING.row_bytes(Layer("full", 4, 128, 128), "q8_0", "q8_0") * plain.cells
    assert draft.cache_bytes == plain.cache_bytes + 3 * DRAFTING.state_bytes + head


def test_checkpoints_are_for_what_cannot_be_cut_back() -> None:
    assert server(plan(DENSE, host())).checkpoints is None
    assert server(plan(HYBRID, host())).checkpoints == 32
    assert server(plan(SLIDING, host())).checkpoints == 32
    assert (
        server(plan(SLIDING, host(), kv_mode=replace(Q8, k="f16", v="f16", swa_full=True))).checkpoints
        is None
    )


@pytest.mark.parametrize("pool", [host, lambda ram: card(1000 * GIB, ram), unified])
def test_checkpoints_keep_to_the_memory_of_the_host(pool: Any) -> None:
    """Each is a state of 48 MiB, and a slot would keep 32 of them."""
    need = plan(HYBRID, pool(1000 * GIB), workers=2).ram_bytes
    made = plan(HYBRID, pool(need + GIB + 200 * MIB), workers=2)
    beyond = server(made).cache_bytes - made.kv_bytes - made.recurrent_bytes
    assert server(made).slots == 2
    most = (GIB + 200 * MIB) // (2 * 48 * MIB)
    assert most - 1 - beyond // (96 * MIB) - 1 <= int(flags(made)["--ctx-checkpoints"]) <= most
    assert flags(plan(HYBRID, pool(need), workers=1))["--ctx-checkpoints"].isdigit()


def test_where_the_model_comes_from() -> None:
    hub = again(job("hardware.ram=64GiB"))
    assert (flags(hub)["-hf"], flags(hub)["-hff"]) == (
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    )  # fmt: skip
    assert "--no-mmproj" in flags(hub), "a projector that was not planned for would come along"
    seeing = again(job("hardware.ram=64GiB", "model.mmproj=eyes.gguf", "model.mmproj_bytes=1GiB"))
    assert flags(seeing)["--mmproj"] == "eyes.gguf" and "--no-mmproj" not in flags(seeing)
    own = again(job("hardware.ram=64GiB", "model.path='/a folder/b.gguf'"))
    assert flags(own)["-m"] == "/a folder/b.gguf" and "-hf" not in flags(own)
