"""The sweep's engine on a machine that is none: hangs, failed gates, interruptions, budgets, winners."""

import os
from pathlib import Path

import pytest

from bench.sweep.design import Start
from bench.sweep.journal import Settings, load_settings, load_starts
from bench.sweep.records import Began, BudgetSpent, Confirming, Ended, Finished, Measured, Planned
from bench.sweep.variants import Variant
from tests.unit.sweep_support import HANGS, Machine, flag_variants, table_of, timeless, verdicts
from workbench.errors import CheckFailed, ServerError, UsageError

FOUR = flag_variants("fast", "plain", "hangs", "wrong")


def test_a_variant_that_hangs_and_one_that_fails_the_gate_end_and_the_sweep_goes_on(tmp_path: Path) -> None:
    machine = Machine(gains={"fast": 0.08})
    events = list(machine.drive(Settings(variants=FOUR, blocks=3), tmp_path))
    table = table_of(events)
    assert verdicts(table) == {"fast": "faster", "plain": "same", "hangs": "hung", "wrong": "gate"}
    assert table.complete
    ends = {event.variant: event.reason for event in events if isinstance(event, Ended)}
    assert ends["hangs"] == f"hung: {HANGS}"
    assert "token 1 is 9 instead of 6" in ends["wrong"]
    assert sum(key.endswith("/hangs") for key in machine.started) == 1
    assert sum(key.endswith("/wrong") for key in machine.started) == 1
    assert not machine.running


def test_winners_are_decided_by_fresh_starts_alone(tmp_path: Path) -> None:
    def lucky(start: Start) -> float:
        scatter = 0.001 * start.block * (1 if start.variant == "lucky" else -1)
        return scatter + (0.1 if (start.stage, start.variant) == ("screen", "lucky") else 0.0)

    settings = Settings(variants=flag_variants("lucky", "plain"), blocks=4)
    events = list(Machine(noise=lucky).drive(settings, tmp_path))
    assert Confirming(("lucky",)) in events
    row = next(row for row in table_of(events).rows if row.variant == "lucky")
    assert (row.verdict, row.stage, row.decisions["decode_tok_s"].blocks) == ("same", "confirm", 4)


def test_the_baseline_opens_and_closes_the_sweep(tmp_path: Path) -> None:
    machine = Machine(gains={"fast": 0.08})
    list(machine.drive(Settings(variants=FOUR, blocks=2), tmp_path))
    assert machine.started[0] == "open/baseline"
    assert machine.started[-1] == "close/baseline"
    assert [key for key in machine.started if "confirm-1" in key] != []


def test_a_sweep_broken_off_at_any_point_and_resumed_equals_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    settings = Settings(variants=flag_variants("fast", "hangs", "wrong"), blocks=2, debug=True)
    invalid = {"screen-2/fast": "throttled"}

    def machine(break_at: int = -1, *, spoilt: bool = True) -> Machine:
        return Machine({"fast": 0.08}, break_at, {key: [why] for key, why in invalid.items()} if spoilt else {})

    whole = machine()
    wanted = table_of(list(whole.drive(settings, tmp_path / "whole")))
    assert len(whole.calls) > 60
    for point in range(1, len(whole.calls) + 1):
        folder = tmp_path / str(point)
        first = machine(point)
        with pytest.raises(KeyboardInterrupt):
            list(first.drive(settings, folder))
        assert first.running == [], f"a server was left running at call {point}"
        finished = load_starts(folder)
        with open(folder / "starts.jsonl", "ab") as file:
            file.write(b'{"start":{"stage":"screen","bl')
        seen = any(record.reason == "throttled" for record in finished)
        second = machine(spoilt=not seen)
        events = list(second.drive(settings, folder))
        assert timeless(folder) == timeless(tmp_path / "whole")
        assert table_of(events) == wanted
        assert not {record.start.key for record in finished if record.outcome != "invalid"} & set(second.started)


def test_a_finished_sweep_starts_nothing(tmp_path: Path) -> None:
    settings = Settings(variants=FOUR, blocks=2)
    wanted = table_of(list(Machine().drive(settings, tmp_path)))
    machine = Machine()
    events = list(machine.drive(settings, tmp_path))
    assert machine.started == []
    assert table_of(events) == wanted
    assert load_settings(tmp_path) == settings


def test_the_budget_ends_the_sweep_between_two_starts_and_it_goes_on_later(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("one", "two"), blocks=2)
    first = Machine()
    events = list(first.drive(settings, tmp_path, budget_s=30))
    spent = next(event for event in events if isinstance(event, BudgetSpent))
    planned = next(event for event in events if isinstance(event, Planned))
    assert first.now <= 30
    assert 0 < len(first.started) < planned.starts
    assert spent.left == planned.starts - len(first.started)
    assert not table_of(events).complete
    second = Machine()
    assert table_of(list(second.drive(settings, tmp_path))).complete
    assert not set(first.started) & set(second.started)


def test_an_invalid_start_is_repeated_and_then_left_out_of_its_block(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("plain"), blocks=3, retries=1)
    wrong = {"screen-1/plain": ["GPU 0 was throttled: heat"], "screen-2/plain": ["a", "b"]}
    events = list(Machine(invalid=wrong).drive(settings, tmp_path))
    table = table_of(events)
    assert table.rows[0].decisions["decode_tok_s"].blocks == 2
    assert sorted(table.invalid) == [
        "screen-1/plain: GPU 0 was throttled: heat",
        "screen-2/plain: a",
        "screen-2/plain: b",
    ]
    attempts = [e.record.attempt for e in events if isinstance(e, Finished) and e.record.start.key == "screen-2/plain"]
    assert attempts == [1, 2]


def test_variables_that_do_not_arrive_are_said_and_not_timed(tmp_path: Path) -> None:
    lost = Variant(name="lost", axis="nccl", env={"NCCL_PROTO": "LL"})
    machine = Machine()
    table = table_of(list(machine.drive(Settings(variants=(lost,), blocks=2), tmp_path)))
    assert table.rows[0].verdict == "not applied"
    assert table.rows[0].reason == "did not arrive: NCCL_PROTO=LL"


def test_an_all_reduce_that_does_not_add_up_ends_a_variant_before_any_server(tmp_path: Path) -> None:
    machine = Machine()
    table = table_of(list(machine.drive(Settings(variants=flag_variants("corrupts"), blocks=2), tmp_path)))
    assert table.rows[0].reason == "all-reduce of 4096 bytes has 3 wrong elements"
    assert not any("corrupts" in key for key in machine.started)


def test_a_hang_while_it_is_measured_ends_the_variant(tmp_path: Path) -> None:
    machine = Machine()
    table = table_of(list(machine.drive(Settings(variants=flag_variants("hangs-late", "dies"), blocks=2), tmp_path)))
    assert verdicts(table) == {"hangs-late": "hung", "dies": "died"}
    assert machine.running == []


def test_a_baseline_that_fails_is_an_error_and_not_remembered(tmp_path: Path) -> None:
    class Broken(Machine):
        def measure(self, url: str):  # type: ignore[no-untyped-def]
            raise ServerError("gone")

    settings = Settings(variants=flag_variants("plain"), blocks=2)
    with pytest.raises(CheckFailed, match="the baseline itself does not run: gone"):
        list(Broken().drive(settings, tmp_path))
    assert load_starts(tmp_path) == ()
    assert table_of(list(Machine().drive(settings, tmp_path))).complete


def test_what_is_left_of_a_server_ends_the_sweep(tmp_path: Path) -> None:
    class Sticky(Machine):
        def tick(self, name: str) -> None:
            super().tick(name)
            if name == "stop" and self.started[-1].endswith("/plain"):
                raise ServerError("process 7 is still there")

    settings = Settings(variants=flag_variants("plain"), blocks=2)
    with pytest.raises(ServerError, match="still there"):
        list(Sticky().drive(settings, tmp_path))


def test_a_folder_holds_one_sweep_and_one_process(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("one"), blocks=2)
    running = Machine().drive(settings, tmp_path)
    next(running)
    with pytest.raises(UsageError, match="another sweep is writing"):
        next(Machine().drive(settings, tmp_path))
    running.close()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="blocks, seed differ"):
        next(Machine().drive(Settings(variants=flag_variants("one"), blocks=3, seed=4), tmp_path))


def test_a_damaged_line_is_said_with_its_number(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("one"), blocks=2)
    list(Machine().drive(settings, tmp_path))
    with open(tmp_path / "starts.jsonl", "ab") as file:
        file.write(b"{}\n")
    count = len((tmp_path / "starts.jsonl").read_bytes().splitlines())
    with pytest.raises(UsageError, match=f"line {count} is not a start"):
        next(Machine().drive(settings, tmp_path))


def test_the_debug_starts_are_untimed_and_say_what_nccl_chose(tmp_path: Path) -> None:
    machine = Machine()
    table = table_of(list(machine.drive(Settings(variants=flag_variants("one"), blocks=2, debug=True), tmp_path)))
    assert [(c.algorithm, c.protocol, c.bytes, c.channels) for c in table.rows[0].choices] == [("RING", "LL", 8192, 2)]
    debug = [record for record in load_starts(tmp_path) if record.outcome == "debug"]
    assert [record.start.variant for record in debug] == ["baseline", "one"]
    assert all(record.measured is None for record in debug)


def test_what_looked_faster_is_undecided_until_fresh_starts_show_it(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("fast"), blocks=3)
    machine = Machine(gains={"fast": 0.08})
    for event in machine.drive(settings, tmp_path):
        if isinstance(event, Confirming):
            break
    shown = table_of(list(Machine(gains={"fast": 0.08}).drive(settings, tmp_path, budget_s=0)))
    assert shown.rows[0].verdict == "undecided"
    unconfirmed = Settings(variants=flag_variants("fast"), blocks=3, confirm=False)
    events = list(Machine(gains={"fast": 0.08}).drive(unconfirmed, tmp_path / "other"))
    assert verdicts(table_of(events)) == {"fast": "faster"}


def test_each_start_is_told_before_and_after(tmp_path: Path) -> None:
    events = list(Machine().drive(Settings(variants=flag_variants("one"), blocks=2), tmp_path))
    began = [event.start.key for event in events if isinstance(event, Began)]
    finished = [event.record.start.key for event in events if isinstance(event, Finished)]
    assert began == finished
    assert len(began) == len(set(began)) == 2 + 2 * 2


def test_a_winner_that_hangs_in_its_fresh_starts_ends_and_stays_a_winner(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("fast", "plain"), blocks=2)
    machine = Machine(gains={"fast": 0.08})
    machine.hangs_at = "confirm-2/fast"
    wanted = table_of(list(machine.drive(settings, tmp_path)))
    assert verdicts(wanted) == {"fast": "hung", "plain": "same"}
    again = Machine(gains={"fast": 0.08})
    events = list(again.drive(settings, tmp_path))
    assert Confirming(("fast",)) in events
    assert again.started == []
    assert table_of(events) == wanted


def test_every_start_is_compared_with_the_opening_baseline(tmp_path: Path) -> None:
    """A near tie passes; were it then compared with, the baseline would fail for want of its margins."""
    settings = Settings(variants=flag_variants("near"), blocks=3)
    table = table_of(list(Machine().drive(settings, tmp_path)))
    assert verdicts(table) == {"near": "same"}
    assert table.invalid == ()
    assert "a: token 1 is 2 instead of 6, a near tie (0.10 nats)" in table.rows[0].notes


def test_a_reference_that_is_gone_is_said(tmp_path: Path) -> None:
    settings = Settings(variants=flag_variants("one"), blocks=2)
    list(Machine().drive(settings, tmp_path, budget_s=12))
    assert load_starts(tmp_path)
    (tmp_path / "reference.json").unlink()
    with pytest.raises(UsageError, match=r"reference\.json"):
        list(Machine().drive(settings, tmp_path))


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (Measured(decode_tok_s=0.0), "decode_tok_s is 0.0"),
        (Measured(decode_tok_s=float("nan")), "decode_tok_s is nan"),
        (Measured(decode_tok_s=50.0, prefill_tok_s=-1.0), "prefill_tok_s is -1.0"),
        (Measured(decode_tok_s=50.0, invalid="client-limited"), "client-limited"),
    ],
)
def test_speeds_that_cannot_be_believed_do_not_count(tmp_path: Path, measured: Measured, said: str) -> None:
    settings = Settings(variants=flag_variants("odd"), blocks=2, retries=0)
    machine = Machine()
    machine.odd["odd"] = measured
    table = table_of(list(machine.drive(settings, tmp_path)))
    assert {line.rpartition(": ")[2] for line in table.invalid} == {said}
    assert table.rows[0].verdict == "undecided"
    assert table_of(list(Machine().drive(settings, tmp_path))) == table


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(UsageError, match="cannot write into"):
        next(Machine().drive(Settings(variants=flag_variants("one"), blocks=2), tmp_path / "file" / "run"))
