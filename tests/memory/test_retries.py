"""When a draft that failed may be tried again."""

from __future__ import annotations

from runtime.memory.retries import FIRST_S, MOST_FAILURES, Retries


def test_waits_twice_as_long_after_every_failure_and_ends() -> None:
    now_s, waited = [0.0], list[float]()
    retries = Retries(lambda draft: True, lambda: now_s[0])
    while retries.fail(3) < MOST_FAILURES:
        began_s = now_s[0]
        while not (due := retries.due()):
            now_s[0] += FIRST_S / 2
        assert due == [3] and retries.due() == []  # named once
        waited.append(now_s[0] - began_s)
    assert waited == [FIRST_S * 2**n for n in range(MOST_FAILURES - 1)]
    now_s[0] += 1e9
    assert retries.due() == []


def test_without_hope_nothing_is_tried_and_nothing_is_lost() -> None:
    now_s, hope, asked = [0.0], [False], list[int]()

    def hopeful(draft: int) -> bool:
        asked.append(draft)
        return hope[0]

    retries = Retries(hopeful, lambda: now_s[0])
    retries.fail(1)
    for _ in range(100 * MOST_FAILURES):
        now_s[0] += FIRST_S
        assert retries.due() == []
    before = len(asked)
    assert retries.due() == [] and len(asked) == before  # not looked at before its time
    hope[0] = True
    now_s[0] += FIRST_S
    assert retries.due() == [1]


def test_success_is_told_apart_and_forgets_failures() -> None:
    retries = Retries(lambda draft: True, lambda: 0.0)
    assert not retries.succeed(0)
    assert (retries.fail(0), retries.fail(0), retries.succeed(0), retries.fail(0)) == (1, 2, True, 1)


def test_by_itself_nothing_is_tried_again() -> None:
    now_s = [0.0]
    retries = Retries(clock=lambda: now_s[0])
    retries.fail(0)
    now_s[0] = 1e9
    assert retries.due() == []
