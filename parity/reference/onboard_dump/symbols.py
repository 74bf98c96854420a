"""Numbers, words and lists of a config that remember the keys they were computed from, while the code of a class computes with them."""
from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Callable, Iterable

# Conditions that the class decided by a config key: (expression, outcome, place in the code).
DECISIONS: list[tuple[list, object, str]] = []


def expression(value) -> list:
    """The expression of a value: of a symbol, or a literal."""
    if isinstance(value, Symbol):
        return value.expression
    if isinstance(value, (list, tuple)):
        return ["list", *[expression(item) for item in value]]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no number for it.
        return ["value", str(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    return ["unknown", type(value).__name__]


def place() -> str:
    """File and line of the nearest frame that is none of these modules."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "") == __name__:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


class Symbol:
    """What all symbols share: an expression beside the value."""

    expression: list


class Whole(int, Symbol):
    def __new__(cls, value, expr=None):
        made = int.__new__(cls, value)
        made.expression = expr if expr is not None else expression(value)
        return made

    def __bool__(self):
        DECISIONS.append((self.expression, int.__bool__(self), place()))
        return int.__bool__(self)

    def __hash__(self):
        return int.__hash__(self)

    def __reduce__(self):
        return (int, (int(self),))


class Truth(Whole):
    """A truth value; Python has no subclass of `bool`."""

    def __str__(self):
        return str(int.__bool__(self))

    __repr__ = __str__


class Real(float, Symbol):
    def __new__(cls, value, expr=None):
        made = float.__new__(cls, value)
        made.expression = expr if expr is not None else expression(value)
        return made

    def __hash__(self):
        return float.__hash__(self)

    def __reduce__(self):
        return (float, (float(self),))


class Word(str, Symbol):
    def __new__(cls, value, expr=None):
        made = str.__new__(cls, value)
        made.expression = expr if expr is not None else expression(value)
        return made

    def __eq__(self, other):
        same = str.__eq__(self, other)
        DECISIONS.append((["==", self.expression, expression(other)], same, place()))
        return same

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return str.__hash__(self)

    def __reduce__(self):
        return (str, (str(self),))


class Items(list, Symbol):
    def __init__(self, values: Iterable, expr: list):
        list.__init__(self, values)
        self.expression = expr

    def __getitem__(self, index):
        value = list.__getitem__(self, index)
        if isinstance(index, slice):
            return value
        return symbol(value, ["item", self.expression, expression(index)])

    def __iter__(self):
        return (self[number] for number in range(len(self)))

    def __contains__(self, value):
        inside = list.__contains__(self, value)
        DECISIONS.append((["in", expression(value), self.expression], inside, place()))
        return inside

    def __reduce__(self):
        return (list, (list(map(plain, list.__iter__(self))),))


class Keys(dict, Symbol):
    def __init__(self, values: dict, expr: list):
        dict.__init__(self, values)
        self.expression, self.original = expr, values

    def __setitem__(self, key, value):
        """A key that the class sets is set in the config too."""
        dict.__setitem__(self, key, value)
        self.original[key] = plain(value)

    def update(self, *values, **named):
        for key, value in dict(*values, **named).items():
            self[key] = value

    def setdefault(self, key, default=None):
        if key not in self:
            self[key] = default
        return self[key]

    def items(self):
        return [(key, self[key]) for key in self]

    def __getitem__(self, key):
        return symbol(dict.__getitem__(self, key), ["key", self.expression, str(key)])

    def get(self, key, default=None):
        return self[key] if key in self else default

    def __reduce__(self):
        return (dict, (dict(self),))


def symbol(value, expr: list):
    """The value with its expression; of kinds that can carry none, the value alone."""
    if isinstance(value, Symbol):
        return value
    kinds: list[tuple[type, Callable]] = [(bool, Truth), (int, Whole), (float, Real), (str, Word)]
    for kind, make in kinds:
        if type(value) is kind:
            return make(value, expr)
    if type(value) in (list, tuple):
        return Items(value, expr)
    return Keys(value, expr) if type(value) is dict else value


def plain(value):
    """The value without its expression."""
    for kind, base in ((Truth, bool), (Whole, int), (Real, float), (Word, str)):
        if isinstance(value, kind):
            return base(int.__int__(value)) if base is bool else base.__new__(base, value)
    return value


def arithmetic(name: str, base: type, word: str, reflected: bool):
    """A method that computes with plain numbers and notes the expression."""
    operation = getattr(base, name)

    def method(self, other):
        if not isinstance(other, (int, float)):
            return NotImplemented
        number = float(self) if base is int and isinstance(other, float) else self
        value = getattr(float, name)(number, other) if isinstance(number, float) and not isinstance(number, int) else operation(self, other)
        if value is NotImplemented:
            return value
        pair = [expression(other), expression(self)] if reflected else [expression(self), expression(other)]
        return symbol(value, [word, *pair])

    return method


def comparison(name: str, base: type, word: str):
    operation = getattr(base, name)

    def method(self, other):
        value = operation(self, other)
        if value is not NotImplemented:
            DECISIONS.append(([word, expression(self), expression(other)], value, place()))
        return value

    return method


def add_arithmetic() -> None:
    """Gives whole and real numbers their operators."""
    words = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
    comparisons = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    for kind, base in ((Whole, int), (Real, float)):
        for method, word in words.items():
            setattr(kind, f"__{method}__", arithmetic(f"__{method}__", base, word, False))
            setattr(kind, f"__r{method}__", arithmetic(f"__r{method}__", base, word, True))
        for method, word in comparisons.items():
            setattr(kind, f"__{method}__", comparison(f"__{method}__", base, word))
        kind.__neg__ = lambda self, base=base: symbol(base.__neg__(self), ["neg", self.expression])
        kind.__ceil__ = lambda self, base=base: symbol(base.__ceil__(self), ["ceil", self.expression])
        kind.__floor__ = lambda self, base=base: symbol(base.__floor__(self), ["floor", self.expression])
        kind.__round__ = lambda self, digits=None, base=base: symbol(base.__round__(self, digits), ["round", self.expression])


add_arithmetic()


class WholeNumbers(type):
    """Stands in for `int` in the code of a class: a call keeps the expression, and a test of type is as before."""

    def __instancecheck__(cls, value):
        return isinstance(value, builtins.int)

    def __call__(cls, value=0, *rest):
        number = builtins.int(value, *rest)
        return symbol(number, ["int", expression(value)]) if isinstance(value, Symbol) else number


class integers(metaclass=WholeNumbers):
    """See `WholeNumbers`."""


class RealNumbers(type):
    """As `WholeNumbers`, for `float`."""

    def __instancecheck__(cls, value):
        return isinstance(value, builtins.float)

    def __call__(cls, value=0.0):
        number = builtins.float(value)
        return symbol(number, ["float", expression(value)]) if isinstance(value, Symbol) else number


class reals(metaclass=RealNumbers):
    """See `RealNumbers`."""


def extreme(word: str):
    """`min` or `max` that keeps the expression of several numbers."""
    choose = getattr(builtins, word)

    def call(*values, **options):
        value = choose(*values, **options)
        numbers = all(isinstance(item, (int, float)) for item in values)
        return symbol(plain(value), [word, *map(expression, values)]) if len(values) > 1 and numbers else value

    return call


def root(value):
    """`math.sqrt` that keeps the expression."""
    number = math.sqrt(value)
    return symbol(number, ["sqrt", value.expression]) if isinstance(value, Symbol) else number


def logarithm(value, *base):
    """`math.log` that keeps the expression."""
    number = math.log(value, *base)
    return symbol(number, ["log", value.expression]) if isinstance(value, Symbol) and not base else number
