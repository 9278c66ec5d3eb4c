"""The contracts of what a package adds to Quorate, for that package's own tests with pytest.

::

    from quorate.testing import CodecContract

    class TestMine(CodecContract):
        codec = MINE

Each is loaded when it is first used. Needs the extra ``testing``; docs/extending.md has an example of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_sdk.imports import load

if TYPE_CHECKING:
    from quorate.testing.aggregation import ColumnRuleContract as ColumnRuleContract
    from quorate.testing.aggregation import RuleContract as RuleContract
    from quorate.testing.aggregation import ServerOptimizerContract as ServerOptimizerContract
    from quorate.testing.aggregation import WholeRuleContract as WholeRuleContract
    from quorate.testing.codec import CodecContract as CodecContract
    from quorate.testing.learner import DataContract as DataContract
    from quorate.testing.learner import LearnerContract as LearnerContract
    from quorate.testing.metric import MetricContract as MetricContract
    from quorate.testing.proof import EnrolmentProofContract as EnrolmentProofContract
    from quorate.testing.selection import SelectionContract as SelectionContract
    from quorate.testing.strategy import DeviceStrategyContract as DeviceStrategyContract
    from quorate.testing.strategy import StrategyContract as StrategyContract

_HOMES = {
    "CodecContract": "quorate.testing.codec",
    "ColumnRuleContract": "quorate.testing.aggregation",
    "DataContract": "quorate.testing.learner",
    "DeviceStrategyContract": "quorate.testing.strategy",
    "EnrolmentProofContract": "quorate.testing.proof",
    "LearnerContract": "quorate.testing.learner",
    "MetricContract": "quorate.testing.metric",
    "RuleContract": "quorate.testing.aggregation",
    "SelectionContract": "quorate.testing.selection",
    "ServerOptimizerContract": "quorate.testing.aggregation",
    "StrategyContract": "quorate.testing.strategy",
    "WholeRuleContract": "quorate.testing.aggregation",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Load a contract; pytest then shows the values of an assertion that fails in it."""
    if name in _HOMES:
        try:
            import pytest
        except ModuleNotFoundError:
            needs = f"quorate.testing.{name} needs pytest: pip install 'quorate[testing]'"
            raise ImportError(needs, name="pytest") from None
        pytest.register_assert_rewrite(_HOMES[name])
    return load(__name__, name, _HOMES, extra="testing")


def __dir__() -> list[str]:
    return __all__
