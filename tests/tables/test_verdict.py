from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from paribus.spec.experiment import Claim
from paribus.tables.stats import ALPHA, Difference, detectable, holm, paired, power, seeds_for, tied, upper_sd
from paribus.tables.verdict import Contrast, check, judge


def contrast(*differences: float, sesoi: float | None = None, higher: bool = True) -> Contrast:
    found = paired(dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0))
    assert found is not None
    return Contrast(found, higher, sesoi, seconds=1800.0)


CLEAR = (1.0, 1.1, 0.9, 1.05)
NOISE = (1.0, -1.1, 0.4, -0.2)
SMALL = (0.01, -0.01, 0.005, -0.004)


def test_better_is_what_the_metric_says_it_is() -> None:
    helps, hurts = judge([contrast(*CLEAR), contrast(*CLEAR, higher=False)])
    assert (helps.kind, hurts.kind) == ("helps", "hurts")
    assert helps.detectable is None and helps.more_seeds is None


def test_a_difference_that_is_clear_alone_is_not_among_many() -> None:
    one = contrast(1.0, 0.5, 1.5, 1.2)
    assert judge([one])[0].kind == "helps"
    assert judge([one] + [contrast(*NOISE)] * 19)[0].kind == "inconclusive"


def test_a_refused_contrast_and_one_seed_cost_the_others_nothing() -> None:
    refused, single = replace(contrast(*CLEAR), refusal="unequal tuning"), contrast(3.0)
    found = judge([contrast(*CLEAR), refused, single])
    assert [verdict.kind for verdict in found] == ["helps", "refused", "one seed"]
    assert found[1].why == "unequal tuning" and found[0].p == judge([contrast(*CLEAR)])[0].p


def test_equivalent_needs_a_declared_effect_and_a_spread_that_rules_it_out() -> None:
    declared, undeclared, wide = judge([contrast(*SMALL, sesoi=0.5), contrast(*SMALL), contrast(*NOISE, sesoi=0.5)])
    assert (declared.kind, undeclared.kind, wide.kind) == ("equivalent", "inconclusive", "inconclusive")
    assert declared.detectable is not None and undeclared.more_seeds is None


def test_a_difference_below_the_effect_of_interest_is_called_both() -> None:
    (found,) = judge([contrast(*(value / 10 for value in CLEAR), sesoi=1.0)])
    assert found.kind == "helps" and found.within_sesoi


def test_the_seeds_that_are_asked_for_find_the_effect_of_interest() -> None:
    (found,) = judge([contrast(*NOISE, sesoi=0.5)])
    sd = np.std(NOISE, ddof=1)
    assert found.more_seeds is not None and found.hours == found.more_seeds / 2
    needed = found.more_seeds + len(NOISE)
    assert power(0.5 / sd, needed, ALPHA, 3) == pytest.approx(0.8, abs=0.02)
    assert power(0.5 / sd, needed - 2, ALPHA, 3) < 0.8


def test_equal_differences_decide_nothing() -> None:
    (found,) = judge([contrast(2.0, 2.0, 2.0, sesoi=1.0)])
    assert (found.kind, found.p, found.detectable) == ("equal differences", None, None)


def test_holm_worked_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(
    ("effect", "n", "alpha"), [(1.5, 3, 0.05), (3.0, 5, 0.005), (1.2, 10, 0.001), (0.1, 500, 0.05)]
)
def test_power_of_a_known_spread_is_that_of_the_noncentral_t(effect: float, n: int, alpha: float) -> None:
    critical, shift = reference.t.ppf(1 - alpha / 2, n - 1), effect * n**0.5
    exact = reference.nct.sf(critical, n - 1, shift) + reference.nct.cdf(-critical, n - 1, shift)
    assert power(effect, n, alpha) == pytest.approx(exact, abs=0.005)


def test_power_by_a_pilot_is_the_mean_over_pilots() -> None:
    rng = np.random.default_rng(0)
    pilot, test = (np.sqrt(rng.chisquare(4, 200_000) / 4) for _ in range(2))
    t = (rng.standard_normal(200_000) + 3.0 * 5**0.5 * pilot) / test
    drawn = float(np.mean(np.abs(t) > reference.t.ppf(1 - 0.005 / 2, 4)))
    assert power(3.0, 5, 0.005, 4) == pytest.approx(drawn, abs=0.01)


def test_what_can_be_found_is_found_as_often_as_it_says() -> None:
    assert power(detectable(5, 0.01), 5, 0.01) == pytest.approx(0.8, abs=0.002)
    assert power(0.4, seeds_for(0.4, 0.01, 9) or 0, 0.01, 9) == pytest.approx(0.8, abs=0.005)
    assert seeds_for(1e-4, 0.01) is None


def test_the_upper_limit_of_a_spread_is_above_the_truth_as_often_as_it_says() -> None:
    sds = np.random.default_rng(1).standard_normal((4000, 4)).std(1, ddof=1)
    assert np.mean([upper_sd(sd, 3) > 1 for sd in sds]) == pytest.approx(0.8, abs=0.02)


def scores(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_every_arm_that_may_be_the_best_is_tied_and_none_that_is_not() -> None:
    arms = {"a": scores(1.0, 1.2, 0.9, 1.1), "b": scores(1.1, 1.1, 1.0, 1.0), "c": scores(9.0, 9.1, 9.2, 9.0)}
    assert tied(arms, higher_is_better=True) == {"c"}
    assert tied(arms, higher_is_better=False) == {"a", "b"}


def test_nothing_is_tied_where_nothing_can_be_tested() -> None:
    assert tied({"a": scores(1.0), "b": scores(2.0)}, True) == set()
    assert tied({"a": scores(1.0, 2.0), "b": scores(2.0, 3.0)}, True) == set()  # equal differences
    assert tied({"a": scores(1.0, 2.0)}, True) == set()


def claim(direction: str, tolerance: float | None = None, to: float = 0.0) -> Claim:
    return Claim.model_validate(dict(arm="b", metric="mlm.loss", direction=direction, tolerance=tolerance, to=to))


@pytest.mark.parametrize(
    ("asked", "differences", "outcome"),
    [
        (claim("better"), CLEAR, "met"),
        (claim("worse"), CLEAR, "not met"),
        (claim("better"), NOISE, "undecided"),
        (claim("better"), SMALL, "not met"),  # equivalent
        (claim("equal", 0.5), SMALL, "met"),
        (claim("equal", 0.5), CLEAR, "not met"),
        (claim("equal", 0.5), NOISE, "undecided"),
        (claim("equal", 0.5, to=1.0), CLEAR, "met"),
        (claim("equal", 0.5, to=1.0), SMALL, "not met"),
        (claim("better"), (1.0,), "undecided"),
        (claim("better"), (1.0, 1.0), "undecided"),
    ],
)
def test_a_claim_is_met_or_not_or_not_decided(asked: Claim, differences: tuple[float, ...], outcome: str) -> None:
    found = contrast(*differences, sesoi=0.5)
    assert check(asked, found, judge([found])[0]).outcome == outcome


def test_a_claim_on_what_is_not_measured_or_refused_is_undecided() -> None:
    assert check(claim("better"), None, None).outcome == "undecided"
    refused = replace(contrast(*CLEAR), refusal="another learning rate")
    found = check(claim("better"), refused, judge([refused])[0])
    assert found.outcome == "undecided" and "another learning rate" in found.sentence


def test_a_difference_without_a_known_spread_is_no_evidence() -> None:
    assert judge([Contrast(Difference(5.0, None, None, 3), True, 1.0)])[0].kind == "equal differences"


@given(
    st.lists(st.integers(-500, 500).map(lambda hundredths: hundredths / 100), min_size=3, max_size=6),
    st.booleans(),
)
def test_of_two_arms_none_is_bold_alone_without_a_verdict_that_says_so(moves: list[float], higher: bool) -> None:
    arm, baseline = dict(enumerate(moves)), dict.fromkeys(range(len(moves)), 0.0)
    found = paired(arm, baseline)
    assert found
    bold, (told,) = tied({"arm": arm, "baseline": baseline}, higher), judge([Contrast(found, higher)])
    assert (len(bold) == 1) == (told.kind in ("helps", "hurts"))


@pytest.mark.parametrize("items, right", [(9815, 7000), (5463, 3001), (872, 651)])
def test_one_item_more_in_every_seed_has_no_spread(items: int, right: int) -> None:
    baseline = {seed: 100 * (right + 17 * seed) / items for seed in range(5)}
    arm = {seed: 100 * (right + 17 * seed + 1) / items for seed in range(5)}
    found = paired(arm, baseline)
    assert found and found.sd is None and judge([Contrast(found, True)])[0].kind == "equal differences"
    assert tied({"arm": arm, "baseline": baseline}, True) == set()
