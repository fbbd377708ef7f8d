"""Load, generate, free, give back, again: clean after every cycle, and the same launches in each."""

from __future__ import annotations

import pytest
from cuda_suite import Run, assert_clean

PEERS = {"devices": 2, "GGML_CUDA_P2P": 1}
CONFIGURATIONS: dict[str, tuple[list[str], dict[str, object]]] = {
    "cc 61": ([], {"cc": 61}),
    "cc 75": ([], {"cc": 75}),
    "cc 86": ([], {"cc": 86}),
    "cc 90 with PDL": ([], {"cc": 90, "ptx": 90}),
    "cc 120": ([], {"cc": 120, "ptx": 120}),
    "cc 121": ([], {"cc": 121, "ptx": 120}),
    "two devices": ([], {"devices": 2}),
    "two devices with peers": ([], PEERS),
    "tensor split": (["tensor"], {"devices": 2}),
    "tensor split with peers": (["tensor"], PEERS),
    "tensor split, internal reduction": (["tensor"], {"devices": 2, "GGML_CUDA_ALLREDUCE": "internal"}),
    "virtual devices": ([], {"GGML_CUDA_DEVICES": 2}),
    "virtual devices, tensor split": (["tensor"], {"GGML_CUDA_DEVICES": 2}),
    "driver without VMM": ([], {"vmm": 0}),
    "no graphs": ([], {"GGML_CUDA_DISABLE_GRAPHS": 1}),
    "concurrent streams": ([], {"GGML_CUDA_GRAPH_OPT": 1}),
    "no flash attention": (["layer", "no-flash-attention"], {}),
    "managed memory": ([], {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": 1}),
    "no pinned memory": ([], {"GGML_CUDA_NO_PINNED": 1}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("flavour", ["plain", "nodelete"])
def test_every_cycle_is_clean_and_launches_the_same(run: Run, name: str, flavour: str) -> None:
    arguments, options = CONFIGURATIONS[name]
    outcome = run("cycle", "3", *arguments, flavour=flavour, **options)
    used = outcome.at("in use")
    assert len(used) == 3
    assert used[0]["report"]["contexts"] == int(str(options.get("devices", 1)))
    assert used[0]["report"]["launches"] > 300
    assert len({row["report"]["trace"] for row in used}) == 1
    for row in outcome.at("given back"):
        assert row["ok"]
        assert_clean(row["report"])


def test_built_without_vmm_the_driver_is_found_through_the_runtime(run: Run) -> None:
    outcome = run("cycle", "3", flavour="no-vmm", devices=2)
    assert len({row["report"]["trace"] for row in outcome.at("in use")}) == 1
    for row in outcome.at("given back"):
        assert row["ok"]
        assert_clean(row["report"])


def test_enumeration_creates_no_context(run: Run) -> None:
    outcome = run("cycle", "1", devices=2, cc=121, GGML_CUDA_P2P=1)
    assert outcome.one("enumerated")["devices"] == 2
    assert outcome.one("enumerated")["report"]["contexts_created"] == 0


@pytest.mark.parametrize("cc", [61, 75, 86, 90, 120])
def test_every_operator_that_raises_a_limit(run: Run, cc: int) -> None:
    outcome = run("ops", "2", cc=cc, ptx=min(cc, 90), timeout=600)
    first, second = outcome.at("computed")
    assert first["run"] == second["run"] > 1000
    assert first["report"]["trace"] == second["report"]["trace"]
    for row in outcome.at("given back"):
        assert row["ok"]
        assert_clean(row["report"])


# The same drivers on the source without our patch, with the devices reset behind its back: this is what was reverted
# upstream, and what the tests above would not notice if the simulator did not.


def test_unpatched_a_model_fails_in_the_second_cycle(run: Run) -> None:
    outcome = run("cycle", "3", flavour="unpatched", status=-6)  # aborts: upstream checks every call
    assert len(outcome.at("given back")) == 1
    assert set(outcome.after.stale["attribute"]) == {"mul_mat_q"}
    assert "CUDA error" in outcome.log


def test_unpatched_the_operators_launch_stale_kernels(run: Run) -> None:
    outcome = run("ops", "2", flavour="unpatched", on_fault="continue", verbose=0, timeout=600)
    assert outcome.at("computed")[0]["report"]["stale"] == {}
    stale = outcome.after.stale["attribute"]
    assert set(stale) >= {"mul_mat_q", "flash_attn_ext_f16", "soft_max_f32", "cross_entropy_loss_f32"}
