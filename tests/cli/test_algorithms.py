"""The page of the algorithms is what the code says, and what the code says about cost, state and needs is true."""

from pathlib import Path
from typing import Any

import jax
import pytest

from normstorm.algorithms import CATALOGUE, introspection
from normstorm.cli.algorithms import WORDS, cards_page, rows
from normstorm.problems import get

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
ROWS = {row["name"]: row for row in rows()}


def value(form: str, **letters: int) -> int:
    """What "2 K + n d + 3" is, for these letters."""
    total = 0
    for term in form.split(" + "):
        product = 1
        for factor in term.split():
            product *= int(factor) if factor.isdigit() else letters[factor]
        total += product
    return total


def test_the_page_is_the_code() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == cards_page(), "rewrite it: python -m normstorm.cli.algorithms > docs/algorithms.md"


def test_every_algorithm_has_a_card_in_the_section_of_its_module() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    cards = [card.partition("`")[0] for section in sections for card in section.split("\n### `")[1:]]
    assert cards == list(CATALOGUE)
    modules = [{CATALOGUE[c.partition("`")[0]].__module__ for c in s.split("\n### `")[1:]} for s in sections]
    assert all(len(own) == 1 for own in modules) and len(set().union(*modules)) == len(sections)


@pytest.mark.parametrize("name", ROWS)
def test_no_word_is_missing_or_runs_into_the_next(name: str) -> None:
    row = ROWS[name]
    heads = tuple(f"{word.title()}: " for word in WORDS)
    for word in WORDS:
        assert row[word].endswith("."), (
            f"the docstring of {name} needs a line '{word.title()}: ...' that ends in a full stop"
        )
        assert not any(head in row[word] for head in heads), word


def test_what_is_not_proven_is_not_promised() -> None:
    assert ROWS["generalized_signstorm"]["rate"] == "none known."
    assert all(ROWS[name]["rate"] == "none stated." for name in ("mars", "muon"))


SIZES = {"K": 11, "k": 4, "S1": 13, "S2": 5, "first_batch": 17}
SLOW: dict[str, dict[str, Any]] = {"q": {"later": 50, "restart": 1}, "period": {"later": 50, "restart": 1}}
COIN = {"later": 0.0, "restart": 1.0}


@pytest.mark.parametrize("name", ROWS)
def test_cost_in_letters(name: str) -> None:
    """At other sizes than those it was found from, against the formula, which other tests hold to what is asked."""
    row, n = ROWS[name], 23
    given = {letter: size for letter, size in SIZES.items() if letter in row["parameters"]}
    for step in ("later", "restart") if "restart" in row["sample_gradients"] else ("later",):
        more = {p: often[step] for p, often in SLOW.items() if p in row["parameters"]}
        more |= {"chance": COIN[step]} if "chance" in row["parameters"] else {}
        made = introspection.example(CATALOGUE[name], **given, **more)
        assert made.cost(1, n) == value(row["sample_gradients"]["first"], n=n, **SIZES)
        assert made.cost(3, n) - made.cost(2, n) == value(row["sample_gradients"][step], n=n, **SIZES)


@pytest.mark.parametrize("name", ROWS)
def test_state_in_letters(name: str) -> None:
    """On a real problem, whose d = 12 and n = 9 it was not found from."""
    problem, made = get("matrix-regression", n=9), introspection.example(CATALOGUE[name])
    x = problem.start()
    state = jax.eval_shape(lambda key: made.first(problem, x, made.draw(problem, key))[0], jax.random.key(0))
    held = sum(leaf.size for leaf in jax.tree.leaves(state))
    assert held == 12 + value(ROWS[name]["state"], d=12, n=9)


def test_known_states_and_needs() -> None:
    assert ROWS["normalized_storm"]["state"] == "2 d", "the old point and the estimate"
    assert ROWS["adagrad_norm"]["state"] == "2 d + 2", "and a sum with what rounding took from it"
    assert ROWS["averaged_sgd"]["state"] == "4 d", "and a mean with what rounding took from it"
    assert ROWS["schedule_free_sgd"]["state"] == "5 d", "and the point that moves"
    assert ROWS["saga"]["state"] == "n d + 3 d", "and a gradient of every component"
    assert {name: row["needs"] for name, row in ROWS.items() if row["needs"]} == {
        **{f"spider_{i}": {"finite sum": "S1 = None"} for i in (1, 2)},
        **{name: {"finite sum": "S1 = None"} for name in ("l0l1_spider", "symmetric_spider", "page")},
        **{name: {"finite sum": "always"} for name in ("beta_gd", "svrg", "saga", "sarah")},
        "kalman_storm": {"finite sum": "table = True"},
        "mars": {"matrix": "flavour = shampoo"},
        **{name: {"matrix": "always"} for name in ("muon", "muon_mvr", "limuon")},
        "scion": {"matrix": "ball = mean_sign, spectral, column, row"},
    }
