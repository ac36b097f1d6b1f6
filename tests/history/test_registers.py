"""The search against its definition: try every order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from quire_testing.history.registers import ABSENT, ANYTHING, Call, RegisterSearch, log_list, register

VALUES = [None, "x", "y"]


def run(search, script):
    """Feed a script of (what, call) to a search; the first call that fits nowhere."""
    for place, (what, call) in enumerate(script):
        if what == "invoke":
            call.invoked = place
        elif what == "ok":
            call.answered, call.known = place, True
    for place, (what, call) in enumerate(script):
        found = None
        if what == "invoke":
            search.invoke(call)
        elif what == "ok":
            found = search.ok(call, call.result, place)
        elif what == "fail":
            search.fail(call)
        else:
            search.unknown(call)
        if found is not None:
            return found
    return search.cut()


def some_order_fits(calls, maybe, initial):
    """By definition: is there an order of the answered ones and some of the others that respects time and the register?"""
    for count in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, count):
            for order in itertools.permutations([*calls, *chosen]):
                if respects_time(order) and fits(order, initial):
                    return True
    return False


def respects_time(order):
    return not any(
        later.known and later.answered < earlier.invoked
        for place, earlier in enumerate(order)
        for later in order[place + 1 :]
    )


def fits(order, state):
    for call in order:
        state = register(state, call)
        if state is None:
            return False
    return True


@st.composite
def scripts(draw):
    """Up to six calls, begun and ended in any order, with any answers."""
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            calls.append(Call("get", (None, None), -1, result=draw(st.sampled_from(VALUES))))
        else:
            calls.append(Call("swap", (draw(st.sampled_from(VALUES)), draw(st.sampled_from(VALUES))), -1))
    script, waiting = [], list(calls)
    under_way = []
    while waiting or under_way:
        if waiting and (not under_way or draw(st.booleans())):
            call = waiting.pop(0)
            under_way.append(call)
            script.append(("invoke", call))
        else:
            call = under_way.pop(draw(st.integers(0, len(under_way) - 1)))
            what = draw(st.sampled_from(["ok", "ok", "ok", "fail", "unknown", "never"]))
            if call.kind == "get" and what in {"unknown", "never"}:
                what = "fail"
            if what != "never":
                script.append((what, call))
    return script


@settings(max_examples=400, deadline=None)
@given(scripts())
def test_it_finds_an_order_exactly_if_there_is_one(script):
    search = RegisterSearch(ABSENT, register)
    found = run(search, script)
    ended = {id(call): what for what, call in script if what != "invoke"}
    calls = [call for what, call in script if what == "ok"]
    maybe = [call for what, call in script if what == "invoke" and ended.get(id(call)) not in {"ok", "fail"}]
    assert (found is None) == some_order_fits(calls, maybe, ABSENT)
    assert not search.exhausted


def test_an_unknown_start_is_told_by_the_first_answer():
    search = RegisterSearch(ANYTHING, register)
    one, two = Call("get", (None, None), 0, result="x"), Call("get", (None, None), 0, result="y")
    assert run(search, [("invoke", one), ("ok", one), ("invoke", two), ("ok", two)]) is two


def test_a_swap_of_unknown_outcome_may_happen_much_later():
    late = Call("swap", ("x", "y"), 0)
    script = [("invoke", late), ("unknown", late)]
    for value in ("x", "x", "y", "y"):
        get = Call("get", (None, None), 0, result=value)
        script += [("invoke", get), ("ok", get)]
    assert run(RegisterSearch("x", register), script) is None
    back = Call("get", (None, None), 0, result="x")
    assert run(RegisterSearch("x", register), [*script, ("invoke", back), ("ok", back)]) is back


def test_a_list_is_one_chain():
    def swap(expected, *ledgers, version):
        return Call("list_swap", (expected, ledgers), 0, result=version)

    one, two = swap(0, 1, version=1), swap(0, 2, version=1)
    search = RegisterSearch((0, ()), log_list)
    assert run(search, [("invoke", one), ("invoke", two), ("ok", one), ("ok", two)]) is not None


def test_thousands_of_swaps_at_once_are_judged():
    """Two thousand swaps of a chain, twenty always under way: a few thousand configurations, not two to the twentieth."""
    calls = [Call("swap", (str(number), str(number + 1)), 0, result=None) for number in range(2000)]
    script = []
    for number, call in enumerate(calls):
        script.append(("invoke", call))
        if number >= 20:
            script.append(("ok", calls[number - 20]))
    script += [("ok", call) for call in calls[-20:]]
    search = RegisterSearch("0", register)
    assert run(search, script) is None
    assert not search.exhausted


def test_too_much_is_said_to_be_too_much():
    """Many swaps that all may or may not have happened, in any order."""
    script = []
    for number in range(44):
        call = Call("swap", (None if number % 2 else "a", "a" if number % 2 else None), 0)
        script += [("invoke", call), ("unknown", call)]
    for number in range(10):
        get = Call("get", (None, None), 0, result="a" if number % 2 else None)
        script += [("invoke", get), ("ok", get)]
    search = RegisterSearch(ABSENT, register)
    assert run(search, script) is None
    assert search.exhausted
