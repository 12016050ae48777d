from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.cli.fields import field_types
from training.config import ConfigError
from training.pretraining.config import PretrainConfig


@given(st.integers(1, 400), st.floats(0, 0.99))
def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero(steps: int, warmup: float) -> None:
    config = PretrainConfig(steps=steps, warmup=warmup, learning_rate=1.0)
    rates = [config.rate(step) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1]) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) == 1
    if round(warmup * steps) < steps:
        assert rates[-1] == pytest.approx(1 / (steps - round(warmup * steps)))


def test_json_is_the_run() -> None:
    config = PretrainConfig(corpus=("a", "b"), layers=3, chunk_size=7)
    assert PretrainConfig.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match="layers: expected a whole number, got 'many'"):
        PretrainConfig.from_json(config.to_json().replace('"layers": 3', '"layers": "many"'))
    with pytest.raises(ConfigError, match="not the configuration of a run"):
        PretrainConfig.from_json("{")


FLOATS = [name for name, kind in field_types(PretrainConfig).items() if kind is float]


@given(st.sampled_from(FLOATS), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_number_that_is_not_finite_is_refused_by_its_name(name: str, value: float) -> None:
    assert "weight_decay" in FLOATS
    with pytest.raises(ConfigError, match=f"^{name}: {value} is not a finite number$"):
        PretrainConfig().override({name: value})
