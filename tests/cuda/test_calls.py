"""Around the teardown: who is refused, what stays, what fails, what merely looks."""

from __future__ import annotations

import pytest
from cuda_suite import Run, assert_clean

KINDS = ["backend", "device buffer", "pinned host buffer", "host registration", "event", "communicator"]


def test_each_kind_of_object_alone_holds_its_device(run: Run) -> None:
    outcome = run("calls", "refused", devices=2, GGML_CUDA_REGISTER_HOST=1, GGML_CUDA_ALLREDUCE="internal")
    for kind, name in enumerate(KINDS):
        row = outcome.one(name)
        assert not row["ok"] and row["live"][kind] == 1 and row["active"] == 1
        assert f"1 {name}" in outcome.log
    gone = outcome.at("gone")
    assert len(gone) == len(KINDS)
    for generation, row in enumerate(gone, start=2):
        assert row["ok"] and row["generation"] == generation
        assert_clean(row["report"])


def test_refusing_changes_nothing(run: Run) -> None:
    outcome = run("calls", "one-device", devices=2)
    refused = outcome.one("first refused")
    assert not refused["ok"] and refused["generation"] == 1
    assert not outcome.one("other refused")["ok"]
    assert outcome.one("first goes on")["ok"]


def test_one_of_two_devices_is_given_back_and_stays_so(run: Run) -> None:
    outcome = run("calls", "one-device", devices=2)
    given = outcome.one("other given")
    assert given["ok"] and given["active"] == 0 and given["generation"] == 2
    assert [device["used"] > 0 for device in given["report"]["devices"]] == [True, False]
    # the thread's current device was the sleeping one, in every call of a whole run and its end
    closed = outcome.one("closed by a thread")
    assert closed["active"] == 0
    assert closed["report"]["devices"][1]["used"] == 0
    assert outcome.one("all given")["ok"]
    assert_clean(outcome.one("end")["report"])


def test_no_call_wakes_the_sleeping_current_device_of_its_thread(run: Run) -> None:
    calls = run("calls", "sleeping-current", devices=2).at("call")
    assert len(calls) == 15
    for row in calls:
        assert row["ok"], "the thread's current device is not the second one"
        assert row["active"] == 0, calls.index(row)
        assert row["report"]["misuse"] == {}


def test_a_virtual_device_is_held_by_its_sibling(run: Run) -> None:
    outcome = run("calls", "virtual", GGML_CUDA_DEVICES=2)
    assert not outcome.one("sibling lives")["ok"]
    assert outcome.one("nothing lives")["ok"]
    assert_clean(outcome.one("end")["report"])


@pytest.mark.parametrize("flavour", ["plain", "no-vmm"])
def test_looking_creates_no_context(run: Run, flavour: str) -> None:
    outcome = run("calls", "asleep", flavour=flavour, devices=2, memory_mib="8192,4096", GGML_CUDA_P2P=1)
    assert outcome.one("looked before the first use")["report"]["contexts_created"] == 0
    asleep = outcome.one("looked asleep")
    assert asleep["active"] == 0
    assert asleep["report"]["contexts_created"] == outcome.one("given back")["report"]["contexts_created"] == 2
    assert_clean(outcome.one("end")["report"])
    before, between, after = (outcome.at("memory")[i : i + 2] for i in (0, 2, 4))
    assert [row["total"] >> 20 for row in before] == [8192, 4096]
    assert [row["free"] for row in before] == [row["total"] for row in before]
    assert between[0]["free"] < before[0]["free"]
    assert after == [{**row, "report": new["report"]} for row, new in zip(before, after, strict=True)]


def test_asleep_the_free_memory_is_what_others_left(run: Run) -> None:
    """Another process holds a context and memory; without a context of our own NVML still says so."""
    outcome = run("calls", "asleep-shared", memory_mib=1024)
    (row,) = outcome.at("memory")
    assert row["total"] >> 20 == 1024
    assert row["free"] >> 20 == 1024 - 300 - 200
    assert outcome.one("looked")["report"]["contexts_created"] == 1  # that of the other process


def test_no_memory_at_any_allocation_is_an_error_and_is_given_back(run: Run) -> None:
    rows = run("loads", "out-of-memory").at("failed")
    assert {row["stage"] for row in rows} == {"load", "context", "decode", "none"}
    for row in rows:
        assert row["ok"] and row["retried"] == 0, row
        assert_clean(row["report"])


def test_no_memory_from_any_allocation_on(run: Run) -> None:
    """The pool for devices without VMM tries again before it gives up, so here all later allocations fail too."""
    stages = set()
    for n in range(1, 20):
        row = run("loads", "out-of-memory-once", vmm=0, fail_alloc=f"{n}+").one("failed")
        stages.add(row["stage"])
        assert row["ok"]
        assert_clean(row["report"])
    assert stages == {"load", "context", "decode", "none"}


def test_loading_and_giving_back_from_several_threads(run: Run) -> None:
    row = run("loads", "threads").one("joined")
    assert row["generated"] > 10 and row["generation"] > 4 and row["refused"] > 4
    assert row["failures"] == 0 and row["ok"]
    assert_clean(row["report"])


def test_five_hundred_cycles_do_not_grow(run: Run) -> None:
    outcome = run("loads", "quick")
    first, last = outcome.at("cycle")
    assert first["ok"] and last["ok"]
    assert (first["generation"], last["generation"]) == (51, 501)
    assert_clean(last["report"])
    early, late = (row["kib"] for row in outcome.at("resident"))
    assert late - early < 1024


def test_a_context_of_somebody_else_is_seen(run: Run) -> None:
    outcome = run("calls", "foreign")
    steps = {row["at"]: (row["in_use"], row["active"], row["foreign"]) for row in outcome.rows if "foreign" in row}
    assert steps == {
        "before": (0, 0, 0),
        "theirs, not ours": (0, 1, 1),
        "theirs and ours": (1, 1, 1),
        "given": (0, 0, 0),
        "only ours": (1, 1, 0),
    }


def test_a_reset_that_fails_is_said_and_can_be_tried_again(run: Run) -> None:
    outcome = run("calls", "failing-reset", fail_reset=1)
    first, second = outcome.one("first"), outcome.one("second")
    assert not first["ok"] and first["reset_error"] != 0 and first["active"] == 1
    assert second["ok"] and second["reset_error"] == 0
    assert_clean(second["report"])


def test_a_lost_device_is_not_given_back(run: Run) -> None:
    row = run("calls", "lost").one("lost")
    assert not row["ok"] and row["reset_error"] != 0


def test_a_running_graph_capture_is_waited_for_but_not_for_ever(run: Run) -> None:
    outcome = run("calls", "capture")
    never, ends = outcome.one("does not end"), outcome.one("ends")
    assert not never["ok"] and never["generation"] == 1 and 4900 < never["ms"] < 7000
    assert ends["ok"] and 250 < ends["ms"] < 3000


def test_peers_and_flags_come_back_in_each_generation(run: Run) -> None:
    outcome = run("calls", "set-up", devices=2, cc=121, GGML_CUDA_P2P=1)
    for row in outcome.at("first"):
        assert row["report"]["contexts"] == 1 and "peer_access" not in row["report"]["live"]
    for row in outcome.at("both"):
        assert row["report"]["live"]["peer_access"] == 2
        assert row["flags"] & 7 == 1  # cudaDeviceScheduleSpin
    for row in outcome.at("second given"):
        assert row["ok"] and "peer_access" not in row["report"]["live"]
    for row in outcome.at("both again"):
        assert row["report"]["live"]["peer_access"] == 2
    for row in outcome.at("given"):
        assert row["ok"]
        assert_clean(row["report"])
    assert len(outcome.at("both")) == 2
