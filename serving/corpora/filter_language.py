"""The filter language for metadata. It compiles a JSON object into a tree of conditions.

Examples are `{"field": value}`, `{"field": {"$gt": 3}}`, `$and`, `$or` and `$not`. A dotted path leads into objects,
and into the objects in lists. A list matches if one of its elements passes every test of a condition. As in MongoDB,
`null` matches an absent field, and `$ne` and `$nin` negate `$eq` and `$in`. `$elemMatch` matches a list if one of its
elements matches a whole filter. `$near` matches points within a distance. `$id` is the id of the document.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import orjson

from serving.corpora.filters import (
    ID,
    ORDER,
    SUBSTRING,
    All,
    AnyOf,
    Compares,
    Element,
    Exists,
    FieldPath,
    Filter,
    In,
    Near,
    Not,
    is_number,
    point,
)
from serving.errors import Invalid
from serving.operations.json_body import MAX_DEPTH, TOO_DEEP, is_unicode, levels, no_json
from serving.operations.threads import check_cancelled

MAX_CONDITIONS = 1000
"""Maximum number of conditions in a filter. Each condition costs a lookup. A condition with `$in` counts once."""
MAX_VALUES = 100_000
"""Maximum number of values inside lists and objects, in all operands of a filter together. The values of one level of
nesting are checked in one step, which blocks other threads."""
LARGE = 1000
"""Maximum number of values in a filter that the event loop compiles. The compilation of more values takes more than a
millisecond, so a thread compiles larger filters."""
MAX_NAME = 65_536
"""Maximum number of characters in the name of a field or operator. Names are limited, because an error message repeats
the names of all enclosing conditions."""
OPERATORS = ("$eq", "$ne", *ORDER, "$in", "$nin", *SUBSTRING, "$exists", "$elemMatch", "$near", "$not")
_LOGIC = ("$and", "$or", "$not")
_MEANT = {name.strip("$").lower(): name for name in OPERATORS}
_MEANT |= {"=": "$eq", "==": "$eq", "!=": "$ne", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
"""Names of operators in other query languages. Error messages suggest the corresponding operator of this language."""


def compile_filter(condition: Any, field: str = "filter") -> Filter:
    """Compile a JSON value into a filter. In errors, `field` is the name of the filter.

    Raises:
        Invalid: `condition` is not a filter, or is too large. The error names the path of the wrong part.
    """
    return _Compiler(field).filter(condition, field, 0)


def is_large(condition: Any) -> bool:
    return any(values > LARGE for values in accumulate(map(len, levels(condition))))


def read_filter(text: str, field: str = "filter") -> Filter:
    """Compile a JSON text into a filter. If `text` is not JSON, raise `Invalid`. See `compile_filter`."""
    try:
        return compile_filter(orjson.loads(text), field)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"not JSON: {error}", field=field) from None


class _Compiler:
    """Compiler of one filter. It counts conditions and values, and raises `Invalid` as soon as there are too many."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._conditions = self._values = 0
        self._in_element = False

    def filter(self, condition: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if not isinstance(condition, dict):
            raise Invalid("must be an object", field=field)
        if not condition and depth:
            raise Invalid("must have at least one condition, because it would match every document", field=field)
        return _all(self._clause(key, value, self._path(field, key), depth + 1) for key, value in condition.items())

    def _clause(self, key: str, value: Any, field: str, depth: int) -> Filter:
        if key in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise Invalid("must be a list of at least one filter", field=field)
            parts = [self.filter(part, f"{field}.{i}", depth) for i, part in enumerate(value)]
            return _all(parts) if key == "$and" else AnyOf(tuple(parts))
        if key == "$not":
            return Not(self.filter(value, field, depth))
        if key == ID and self._in_element:
            raise Invalid("$id is the id of the whole document: use it outside of $elemMatch", field=field)
        if key.startswith("$") and key != ID:
            raise Invalid("unknown operator: use $and, $or, $not, $id or the name of a field", field=field)
        if not is_unicode(key):
            raise Invalid("not valid Unicode: a lone surrogate", field=field)
        _check_logic(key, value, field)
        return self._test(key, value, field, depth)

    def _test(self, path: FieldPath, value: Any, field: str, depth: int) -> Filter:
        if not (isinstance(value, dict) and any(key.startswith("$") for key in value)):
            _check_operators(value, field)
            return self._operator(path, "$eq", value, f"{field}.$eq", depth)
        parts = [self._operator(path, key, operand, self._path(field, key), depth) for key, operand in value.items()]
        return _all(_of_one_value(path, parts, field))

    def _operator(self, path: FieldPath, name: str, operand: Any, field: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise Invalid(TOO_DEEP, field=field)
        if name in ("$ne", "$nin"):
            return Not(self._operator(path, "$eq" if name == "$ne" else "$in", operand, field, depth))
        if name == "$not":
            return Not(self._test(path, operand, field, depth + 1))
        if name == "$elemMatch" and path != ID:
            return self._element(path, operand, field, depth + 1)
        if name == "$near" and path != ID:
            return self._near(path, operand, field)
        return self._leaf(path, name, operand, field)

    def _element(self, path: FieldPath, operand: Any, field: str, depth: int) -> Filter:
        if itself := _tests_a_value(operand):
            return Element(path, self._test(None, operand, field, depth), itself)
        _check_operators(operand, field)
        outer, self._in_element = self._in_element, True
        part = self.filter(operand, field, depth)
        self._in_element = outer
        return Element(path, part, itself)

    def _near(self, path: FieldPath, operand: Any, field: str) -> Filter:
        self._count(operand, field)
        center = point(operand)
        if center is None or operand.keys() != {"lat", "lon", "within_m"}:
            raise Invalid("must be an object with lat, lon (degrees) and within_m (metres)", field=field)
        if not is_number(operand["within_m"]) or operand["within_m"] < 0:
            raise Invalid("must be a number of metres", field=f"{field}.within_m")
        return Near(path, center, operand["within_m"])

    def _leaf(self, path: FieldPath, name: str, operand: Any, field: str) -> Filter:
        self._count(operand, field)
        if path == ID:
            return _of_ids(name, operand, field)
        if name == "$eq":
            return In(path, (operand,))
        if name == "$in":
            if not isinstance(operand, list):
                raise Invalid("must be a list", field=field)
            return In(path, tuple(operand))
        if name == "$exists":
            if not isinstance(operand, bool):
                raise Invalid("must be true or false", field=field)
            return Exists(path) if operand else Not(Exists(path))
        if name in ORDER:
            if not is_number(operand) and not isinstance(operand, str):
                raise Invalid("must be a number or a string", field=field)
            return Compares(path, ((name, operand),))
        if name in SUBSTRING:
            if not isinstance(operand, str):
                raise Invalid("must be a string", field=field)
            return Compares(path, ((name, operand),))
        nearest = difflib.get_close_matches(name[:20].lower(), [one.lower() for one in OPERATORS], n=1, cutoff=0.7)
        meant = f", did you mean {_MEANT[nearest[0].strip('$')]}?" if nearest else ""
        raise Invalid(f"unknown operator{meant}; the operators are {' '.join(OPERATORS)}, $and $or", field=field)

    def _path(self, field: str, name: str) -> str:
        if len(name) > MAX_NAME:
            raise Invalid(
                f"the name {name[:20]!r}… has {len(name)} characters, more than {MAX_NAME}", field=self._field
            )
        return f"{field}.{name}"

    def _count(self, operand: Any, field: str) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise Invalid(
                f"more than {MAX_CONDITIONS} conditions: use $in for several values of a field", field=self._field
            )
        for depth, level in enumerate(levels(operand)):
            check_cancelled()
            if depth == MAX_DEPTH:
                raise Invalid(TOO_DEEP, field=field)
            if wrong := no_json(level):
                raise Invalid(wrong, field=field)
            self._values += len(level) if depth else 0  # the condition already counts for the operand itself
            if self._values > MAX_VALUES:
                raise Invalid(f"more than {MAX_VALUES} values within lists and objects", field=self._field)


def _check_logic(key: str, value: Any, field: str) -> None:
    """Raise `Invalid` if `key` is probably meant as `$and`, `$or` or `$not`.

    Such a key is `and`, `or` or `not`, in upper or lower case, and its `value` looks like a filter or several filters.
    """
    if (meant := f"${key.lower()}") not in _LOGIC:
        return
    objects = value if isinstance(value, list) else [value]
    if objects and all(isinstance(one, dict) and one and not _tests_a_value(one) for one in objects):
        named = json.dumps({key: {"$eq": "…"}}, ensure_ascii=False)
        raise Invalid(f"did you mean {meant}? For a field of this name, write {named}", field=field)


def _check_operators(value: Any, field: str) -> None:
    """Raise `Invalid` if `value` is an object whose keys look like misspelt operators.

    Without this check, the field would be compared with the whole object.
    """
    if isinstance(value, dict) and value and all(key.lower() in _MEANT for key in value):
        key = next(iter(value))
        equal = 'To compare the field with this object, write {"$eq": {…}}'
        raise Invalid(f"did you mean {_MEANT[key.lower()]}? {equal}", field=f"{field}.{key}")


def _of_ids(name: str, operand: Any, field: str) -> Filter:
    """Return a filter on document ids for the operator `name`. An integer matches the id that is its decimal string.

    Raises:
        Invalid: the operator is neither `$eq` nor `$in`, or `operand` does not consist of ids.
    """
    if name not in ("$eq", "$in"):
        raise Invalid("$id supports only $eq, $ne, $in, $nin and $not", field=field)
    options = [operand] if name == "$eq" else operand
    if not isinstance(options, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in options):
        raise Invalid(f"must be {'an id, a string' if name == '$eq' else 'a list of ids, each a string'}", field=field)
    return In(ID, tuple(map(str, options)))


def _all(parts: Iterable[Filter]) -> Filter:
    """Return the conjunction of `parts`, or the part itself if there is only one."""
    several = tuple(parts)
    return several[0] if len(several) == 1 else All(several)


def _of_one_value(path: FieldPath, parts: Sequence[Filter], field: str) -> list[Filter]:
    """Merge the conditions `parts` on the value at `path`. Return the merged conditions.

    If `parts` have an `$eq` or `$in`, all `$eq`, `$in` and bounds become one `$in` with the values that meet all of
    them. Otherwise, all bounds become one range. Other conditions stay unchanged.

    Raises:
        Invalid: the bounds mix numbers and strings.
    """
    bounds = tuple(bound for part in parts if isinstance(part, Compares) for bound in part.bounds)
    if len({is_number(operand) for _, operand in bounds}) > 1:
        raise Invalid("no value can be within these bounds, because they mix numbers and strings", field=field)
    ranges = [Compares(path, bounds)] if bounds else []
    sets = [part for part in parts if isinstance(part, In)]
    others = [part for part in parts if not isinstance(part, In | Compares)]
    if not sets:
        return [*ranges, *others]
    tests: list[In | Compares] = [*sets[1:], *ranges]
    if not tests:
        return [sets[0], *others]
    return [In(path, tuple(one for one in sets[0].options if all(test.accepts(one) for test in tests))), *others]


def _tests_a_value(condition: Any) -> bool:
    """Return whether `condition` has an operator that tests a value, such as `$gt`.

    Names of fields, including `$id`, are not such operators. `$and` and `$or` are not either, because they combine
    filters. If `$not` is the only such operator, test its operand instead.
    """
    while isinstance(condition, dict):
        operators = {key for key in condition if key.startswith("$")} - {"$and", "$or", ID}
        if operators != {"$not"}:
            return bool(operators)
        condition = condition["$not"]
    return False
