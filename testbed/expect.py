"""Expectations: assertions on a run's metrics, written in a small safe language.

    go-back-n.retransmitted_bytes > selective-repeat.retransmitted_bytes
    all.ledger_open == 0 and verdict != invalid
    abs(selective-repeat.goodput / go-back-n.goodput - 1) < 0.03
    completion_time_max < 5 ms

A name is `metric` or `variant.metric`. What is said of a bare metric, or of one of `all`, must hold
in every variant, so the expectation is then evaluated once per variant. A hyphen inside a name
belongs to the name; subtraction therefore needs a space on each side. Numbers may carry a unit of
rate, time or size.
There is nothing else: no calls but abs, min and max, no attributes, no assignment.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from testbed.units import parse_duration, parse_rate, parse_size

TEXT_LIMIT = 500
"""Characters in one expectation."""

NESTING_LIMIT = 50
"""Parentheses, signs and nots in one expectation; each costs at most seven levels of recursion."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")
"""A metric or variant name: hyphens only between letters, digits and underscores."""

_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>{NAME.pattern}(?:\.{NAME.pattern})?)
    | (?P<operator><=|>=|==|!=|[-+*/<>(),])
    )""",
    re.VERBOSE,
)
_UNIT = re.compile(r"\s*([A-Za-zµ]+(?:/s)?)(?![\w.-])")
_NOT_UNITS = {"and", "or", "not"}
_KEYWORDS = {"and", "or", "not"}
_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    "abs": (abs, 1, 1),
    "min": (min, 1, 16),
    "max": (max, 1, 16),
}
RESERVED_NAMES = frozenset(_KEYWORDS | set(_FUNCTIONS) | {"all"})
"""Words that cannot name a variant."""

VERDICTS = ("faithful", "degraded", "invalid")
"""The words that the metric `verdict` may be compared with."""

Value = float | str
Kind = Literal["number", "word", "truth"]


class ExpectationError(ValueError):
    """The expectation cannot be understood; the message quotes it and says where and why."""


class _NotComparable(Exception):  # noqa: N818
    """Evaluation met a value that nothing can be concluded from."""


@dataclass(frozen=True, slots=True)
class ExpectationOutcome:
    """What an expectation came to.

    ``passed`` is None when a variant that it names did not run. ``values`` holds every metric that
    was read, by "variant.metric". ``reason`` is empty unless there was nothing to compare.
    """

    text: str
    passed: bool | None
    values: Mapping[str, Value | None]
    reason: str = ""

    @property
    def actual(self) -> str:
        """What was found, in words: every value read, and the reason if there is one."""
        found = ", ".join(
            f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in self.values.items()
        )
        return "; ".join(filter(None, (found, self.reason)))


class _Scope:
    """The metrics of one evaluation; remembers which were read."""

    def __init__(self, metrics: Mapping[str, Mapping[str, Value | None]], current: str) -> None:
        self._metrics = metrics
        self._current = current
        self.read: dict[str, Value | None] = {}

    def value(self, variant: str | None, metric: str) -> Value:
        name = self._current if variant is None else variant
        found = self._metrics[name].get(metric)
        self.read[f"{name}.{metric}"] = found
        if found is None:
            raise _NotComparable(f"{name}.{metric} has no value in this run")
        if isinstance(found, float) and math.isnan(found):
            raise _NotComparable(f"{name}.{metric} is not a number")
        return found


@dataclass(frozen=True, slots=True)
class _Term:
    """A piece of the expression: how to compute it and what kind of value that gives."""

    kind: Kind
    compute: Callable[[_Scope], Value]


@dataclass(frozen=True)
class Expectation:
    """One parsed expectation.

    ``variants`` are the variants it names; ``each`` says whether it also has to hold in each.
    """

    text: str
    variants: frozenset[str]
    each: bool
    _term: _Term

    @classmethod
    def parse(
        cls, text: str, *, metrics: Collection[str], variants: Collection[str]
    ) -> Expectation:
        """Understand an expectation over known names. Raises ExpectationError."""
        if len(text) > TEXT_LIMIT:
            raise ExpectationError(f"an expectation has at most {TEXT_LIMIT} characters")
        parser = _Parser(text, metrics=metrics, variants=variants)
        term = parser.parse()
        return cls(text, frozenset(parser.named), parser.each, term)

    def evaluate(self, metrics: Mapping[str, Mapping[str, Value | None]]) -> ExpectationOutcome:
        """Judge the metrics of the variants that ran: variant -> metric -> value (SI or bytes)."""
        if not metrics or not self.variants <= metrics.keys():
            absent = ", ".join(sorted(self.variants - metrics.keys())) or "every variant"
            return ExpectationOutcome(self.text, None, {}, f"{absent} did not run")
        read: dict[str, Value | None] = {}
        failures = []
        for current in metrics if self.each else [""]:
            scope = _Scope(metrics, current)
            try:
                passed = bool(self._term.compute(scope))
                reason = "" if passed or not self.each else f"not so in {current}"
            except (_NotComparable, ZeroDivisionError, OverflowError) as error:
                passed = False
                reason = "division by zero" if isinstance(error, ZeroDivisionError) else str(error)
            read.update(scope.read)
            if not passed:
                failures.append(reason)
        return ExpectationOutcome(self.text, not failures, read, "; ".join(filter(None, failures)))


class _Parser:
    """Recursive descent over the grammar, lowest precedence first:

    either: both ("or" both)*          negation: "not" negation | comparison
    both: negation ("and" negation)*   comparison: sum (("<" | "==" | …) sum)?
    sum: product (("+" | "-") product)*
    product: sign (("*" | "/") sign)*
    sign: "-" sign | number | name | function "(" sum, … ")" | "(" either ")"
    """

    def __init__(self, text: str, *, metrics: Collection[str], variants: Collection[str]) -> None:
        self._text = text
        self._metrics = metrics
        self._variants = variants
        self._tokens = _tokens(text)
        if sum(token in ("(", "-", "not") for token in self._tokens) > NESTING_LIMIT:
            raise self._error(f"more than {NESTING_LIMIT} parentheses, signs and nots")
        self._next = 0
        self.named: set[str] = set()
        self.each = False

    def parse(self) -> _Term:
        term = self._either()
        if self._peek():
            raise self._error(f"unexpected {self._peek()!r}")
        if term.kind != "truth":
            raise self._error("is not a comparison")
        return term

    def _error(self, problem: str) -> ExpectationError:
        return ExpectationError(f"{self._text!r}: {problem}")

    def _peek(self) -> str:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        return token if isinstance(token, str) else f"{token:g}"

    def _accept(self, *wanted: str) -> str:
        if self._next < len(self._tokens) and self._tokens[self._next] in wanted:
            self._next += 1
            return str(self._tokens[self._next - 1])
        return ""

    def _demand(self, wanted: str) -> None:
        if not self._accept(wanted):
            raise self._error(f"expected {wanted!r} before {self._peek() or 'the end'!r}")

    def _require(self, term: _Term, kind: Kind, operator: str) -> _Term:
        if term.kind != kind:
            wanted = "comparisons" if kind == "truth" else "numbers"
            raise self._error(f"{operator!r} works on {wanted}")
        return term

    def _either(self) -> _Term:
        left = self._both()
        while self._accept("or"):
            left = self._logic("or", left, self._both())
        return left

    def _both(self) -> _Term:
        left = self._negation()
        while self._accept("and"):
            left = self._logic("and", left, self._negation())
        return left

    def _logic(self, operator: str, left: _Term, right: _Term) -> _Term:
        a = self._require(left, "truth", operator).compute
        b = self._require(right, "truth", operator).compute
        combine = max if operator == "or" else min
        # Both sides are computed, so that a value missing on either is never hidden.
        return _Term("truth", lambda scope: combine(float(a(scope)), float(b(scope))))

    def _negation(self) -> _Term:
        if self._accept("not"):
            inner = self._require(self._negation(), "truth", "not").compute
            return _Term("truth", lambda scope: float(not inner(scope)))
        return self._comparison()

    def _comparison(self) -> _Term:
        left = self._sum()
        operator = self._accept("<=", ">=", "==", "!=", "<", ">")
        if not operator:
            return left
        right = self._sum()
        if left.kind != right.kind or left.kind == "truth":
            raise self._error(f"{operator!r} compares two numbers, or a verdict with a word")
        if left.kind == "word" and operator not in ("==", "!="):
            raise self._error(f"a verdict is compared with == or !=, not {operator!r}")
        a, b, compare = left.compute, right.compute, _COMPARISONS[operator]
        return _Term("truth", lambda scope: float(compare(_defined(a(scope)), _defined(b(scope)))))

    def _sum(self) -> _Term:
        left = self._product()
        while operator := self._accept("+", "-"):
            left = self._arithmetic(operator, left, self._product())
        return left

    def _product(self) -> _Term:
        left = self._sign()
        while operator := self._accept("*", "/"):
            left = self._arithmetic(operator, left, self._sign())
        return left

    def _arithmetic(self, operator: str, left: _Term, right: _Term) -> _Term:
        a = self._require(left, "number", operator).compute
        b = self._require(right, "number", operator).compute
        compute = _ARITHMETIC[operator]
        return _Term("number", lambda scope: compute(float(a(scope)), float(b(scope))))

    def _sign(self) -> _Term:
        if self._accept("-"):
            inner = self._require(self._sign(), "number", "-").compute
            return _Term("number", lambda scope: -float(inner(scope)))
        if self._accept("("):
            term = self._either()
            self._demand(")")
            return term
        return self._leaf()

    def _leaf(self) -> _Term:
        if self._next >= len(self._tokens):
            raise self._error("ends too early")
        token = self._tokens[self._next]
        if not isinstance(token, str):
            self._next += 1
            return _Term("number", lambda scope: token)
        if token in _KEYWORDS or not NAME.match(token):
            raise self._error(f"unexpected {token!r}")
        self._next += 1
        if token in _FUNCTIONS:
            return self._call(token)
        if token in VERDICTS:
            return _Term("word", lambda scope: token)
        return self._metric(token)

    def _call(self, name: str) -> _Term:
        function, fewest, most = _FUNCTIONS[name]
        self._demand("(")
        arguments = [self._require(self._sum(), "number", name).compute]
        while self._accept(","):
            arguments.append(self._require(self._sum(), "number", name).compute)
        self._demand(")")
        if not fewest <= len(arguments) <= most:
            raise self._error(f"{name} takes {fewest} argument(s)")
        return _Term("number", lambda scope: function(*(float(a(scope)) for a in arguments)))

    def _metric(self, token: str) -> _Term:
        prefix, _, metric = token.rpartition(".")
        variant = prefix if prefix not in ("", "all") else None
        if variant is not None and variant not in self._variants:
            raise self._error(f"unknown variant {variant!r}{_suggest(variant, self._variants)}")
        if metric not in self._metrics:
            raise self._error(f"unknown metric {metric!r}{_suggest(metric, self._metrics)}")
        if variant is None:
            self.each = True
        else:
            self.named.add(variant)
        kind: Kind = "word" if metric == "verdict" else "number"
        return _Term(kind, lambda scope: scope.value(variant, metric))


_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: float(a) < float(b),
    "<=": lambda a, b: float(a) <= float(b),
    ">": lambda a, b: float(a) > float(b),
    ">=": lambda a, b: float(a) >= float(b),
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _defined(value: Value) -> Value:
    """Refuse what arithmetic made not a number; every comparison but != would call it false."""
    if isinstance(value, float) and math.isnan(value):
        raise _NotComparable("the expression is not a number")
    return value


def _tokens(text: str) -> list[str | float]:
    tokens: list[str | float] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpectationError(f"{text!r}: unexpected {text[position:].strip()[0]!r}")
        position = match.end()
        number = match["number"]
        if number is None:
            tokens.append(match["name"] or match["operator"])
            continue
        unit = _UNIT.match(text, position)
        if unit is None or unit[1] in _NOT_UNITS:
            tokens.append(float(number))
        else:
            tokens.append(_quantity(text, number, unit[1]))
            position = unit.end()
    return tokens


def _quantity(text: str, number: str, unit: str) -> float:
    for parse in (parse_duration, parse_size, parse_rate):
        try:
            return float(parse(f"{float(number)!r} {unit}"))
        except ValueError:
            continue
    raise ExpectationError(f"{text!r}: {number} has an unknown unit {unit!r}")


def _suggest(word: str, allowed: Collection[str]) -> str:
    close = difflib.get_close_matches(word, allowed, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(allowed))}"
