"""Reads a scenario file into its sections and turns every fault into a finding with its line, key path and remedy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from catalogs.cells import plain_date
from catalogs.errors import Finding, close_matches
from catalogs.scenario_parts import OUT_OF_BOUNDS
from catalogs.scenario_schema import HEADROOM_WORDS, ModelSection, Scenario
from catalogs.texts import UnreadableError, read_text

Key = tuple[str | int, ...]

# A scenario of 50 models takes 30 KiB.
_MOST_MIB = 1
# Deeper than any scenario; stops at an anchor inside itself.
_DEEPEST = 12
# A scenario of 500 models. An alias counts as often as it is used: a few lines can stand for billions.
_MOST_VALUES = 20_000

# What a number key counts in, by the ending of its name.
_UNITS = {
    "_ms": "milliseconds", "_minutes": "minutes", "_req_per_s": "requests per second", "_usd_per_h": "USD per hour",
    "_interrupt_per_h": "interruptions per hour", "_pct": "percent", "_days": "days", "_nodes": "nodes",
    "at_percentile": "tokens", "percentile": "percent (write 99 for the 99th)", "input": "tokens", "output": "tokens",
}  # fmt: skip


@dataclass
class ScenarioDraft:
    """A scenario as far as it could be read: the sections without a fault, and the findings for the others.

    ``models`` pairs each sound entry with its position in the file. ``whole`` is there when nothing is wrong. ``rest`` and
    ``rest_of_models`` are the faulty sections and entries without their faulty keys (None, or an empty list, where such a key
    has no default): names in them can still be checked, nothing else.
    """

    file: str
    lines: Mapping[Key, int] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    models: list[tuple[int, ModelSection]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    whole: Scenario | None = None
    rest: dict[str, Any] = field(default_factory=dict)
    rest_of_models: list[tuple[int, ModelSection]] = field(default_factory=list)

    def section(self, name: str) -> Any:
        """A section for its names and files: as it is, else what is left of it; None where it is not there."""
        return self.sections.get(name, self.rest.get(name))

    @property
    def named_models(self) -> list[tuple[int, ModelSection]]:
        """All entries of models whose names can be checked, in the file's order."""
        return sorted([*self.models, *self.rest_of_models], key=lambda pair: pair[0])

    def finding(self, key: Key, value: object, reason: str, remedy: str) -> Finding:
        """A finding at a key of the file, with its line."""
        shown = "" if value is None else str(value)
        return Finding(self.file, self.line(key), show_key(key), shown, reason, remedy)

    def line(self, key: Key) -> int:
        """The line of a key, or of the nearest key above it that is in the file."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 0)


def show_key(key: Key) -> str:
    """``("models", 0, "slo", "ttft_ms")`` -> ``models[0].slo.ttft_ms``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_scenario_file(path: Path) -> ScenarioDraft:
    """Parse and validate the file at ``path``; never raises for what is in it."""
    draft = ScenarioDraft(path.name)
    try:
        text = read_text(path, most_mib=_MOST_MIB, kind="YAML file")
    except UnreadableError as error:
        draft.findings.append(Finding(path.name, 0, "", "", error.reason, error.remedy))
        return draft
    loader = _Loader(text)
    try:
        raw = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, place = (mark.line + 1, f" at column {mark.column + 1}") if mark else (0, "")
        draft.findings.append(
            Finding(
                path.name,
                line,
                "",
                "",
                f"YAML syntax{place}: {error.problem}",
                "mend the line (keys need `: `)",
            )
        )
        return draft
    except (yaml.YAMLError, ValueError) as error:
        draft.findings.append(Finding(path.name, 0, "", "", f"YAML syntax: {error}", "mend the file"))
        return draft
    finally:
        loader.dispose()
    draft.lines = loader.lines
    draft.findings += [
        Finding(path.name, line, key, "", "the key is there twice", "keep one") for key, line in loader.twice
    ]
    if not isinstance(raw, Mapping):
        draft.findings.append(Finding(path.name, 0, "", "", "is not a mapping of keys", "start from `coral init DIR`"))
        return draft
    _validate(draft, raw)
    return draft


def _validate(draft: ScenarioDraft, raw: Mapping[str, Any]) -> None:
    bad: dict[Key, set[str | int]] = {}
    told = {known.line() for known in draft.findings}
    try:
        draft.whole = Scenario.model_validate(raw)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            key, finding = _translate(draft, fault)
            if finding.line() not in told:
                told.add(finding.line())
                draft.findings.append(finding)
            depth = 2 if key[:1] == ("models",) else 1
            bad.setdefault(key[:depth], set()).update(key[depth : depth + 1])
    if draft.findings:
        draft.whole = None
    _sort_sections(draft, raw, bad)
    if ("price_as_of",) not in bad and "price_as_of" in raw:
        draft.sections["price_as_of"] = plain_date(str(raw["price_as_of"]))


def _sort_sections(draft: ScenarioDraft, raw: Mapping[str, Any], bad: Mapping[Key, set[str | int]]) -> None:
    """Sound sections and models to their place, the rest of faulty ones (``bad``: their faulty keys) to its."""
    for name, info in Scenario.model_fields.items():
        if name == "models" or raw.get(name) is None or not _is_section(info.annotation):
            continue
        if (name,) not in bad:
            draft.sections[name] = _section(name).model_validate(raw[name])
        elif isinstance(raw[name], Mapping):
            draft.rest[name] = _without(_section(name), raw[name], bad[name,])
    if isinstance(raw.get("models"), Sequence) and ("models",) not in bad:
        for index, entry in enumerate(raw["models"]):
            if ("models", index) not in bad:
                draft.models.append((index, ModelSection.model_validate(entry)))
            elif isinstance(entry, Mapping) and "model" in entry and "model" not in bad["models", index]:
                draft.rest_of_models.append((index, _without(ModelSection, entry, bad["models", index])))


def _without(kind: type[BaseModel], raw: Mapping[str, Any], bad: set[str | int]) -> Any:
    """A section of its sound keys alone, by no means valid as a whole."""
    values: dict[str, Any] = {}
    for name, info in kind.model_fields.items():
        key = info.alias or name
        if info.is_required():
            values[name] = [] if getattr(info.annotation, "__origin__", None) is list else None
        if key in raw and key not in bad:
            with contextlib.suppress(ValidationError):  # what only the section as a whole can read
                values[name] = TypeAdapter(cast(Any, info.annotation)).validate_python(raw[key])
    return kind.model_construct(**values)


def _section(name: str) -> type[BaseModel]:
    annotation = Scenario.model_fields[name].annotation
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    return next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _is_section(annotation: object) -> bool:
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    return any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds)


def _translate(draft: ScenarioDraft, fault: Any) -> tuple[Key, Finding]:
    """A pydantic fault as a finding. Names of union members are dropped from the path."""
    key: Key = tuple(part for part in fault["loc"] if not _is_union_tag(part))
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    name = str(key[-1]) if key else ""
    shown = None if isinstance(value, Mapping | list) or kind == "missing" else value
    reason, remedy = _explain(kind, name, value, context, key)
    if kind == "value_error":
        reason, remedy = str(context["error"]), "give one complete form"
    if value is None and kind != "missing":
        shown, reason = "null", "has no value"
    return key, draft.finding(key, shown, reason, remedy)


def _is_union_tag(part: str | int) -> bool:
    return isinstance(part, str) and (
        part.startswith(("literal[", "constrained-", "function-")) or part.endswith("Section")
    )


def _explain(kind: str, name: str, value: object, context: Mapping[str, Any], key: Key) -> tuple[str, str]:
    unit = next((text for ending, text in _UNITS.items() if name.endswith(ending)), "")
    number = f"a plain number in {unit}" if unit else "a plain number"
    if kind == "missing":
        return "the key is missing", f"add {name}" + (f", {number}" if unit else "")
    if kind == "extra_forbidden":
        near = close_matches(name, _known_keys(key), n=1)
        return "unknown key", f"did you mean {near[0]}?" if near else "remove it; known keys: " + ", ".join(
            _known_keys(key)
        )
    if kind == "literal_error":
        near = close_matches(
            str(value), str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", "), n=1
        )
        return "is not an allowed value", (
            f"did you mean {near[0]}? " if near else ""
        ) + f"allowed: {context['expected']}"
    if kind == "model_type" and name == "headroom":
        words = list(HEADROOM_WORDS)
        near = close_matches(value, words, n=1) if isinstance(value, str) else []
        reason = f"is neither {' nor '.join(words)} nor a share for each phase"
        return reason, (
            f"did you mean {near[0]}? " if near else ""
        ) + f"allowed: {', '.join(words)} or stated shares such as {{prefill: 0.8, decode: 0.9}}"
    if kind == OUT_OF_BOUNDS or (kind == "float_type" and type(value) is int):  # the latter: beyond any float
        assert isinstance(value, int | float)
        reason = "is zero" if value == 0 else "is negative" if value < 0 else "is out of range"
        return reason, f"give {number}" + (_bounds_text(context) if context else "")
    if kind == "finite_number":
        return "is not a finite number", f"give {number}; leave the key out where it is unknown"
    if kind in {"float_type", "float_parsing", "int_type", "int_from_float"}:
        whole = "whole " if kind.startswith("int") else ""
        return f"is not a {whole}number", f"give {number} without quotes or unit"
    if kind.startswith("date"):
        return str(context["reason"]), "write year-month-day, such as 2026-07-30"
    if kind == "string_pattern_mismatch" and name == "version":
        return "is not a version", "write it as 0.25.0"
    plain = {
        "bool_type": ("is neither true nor false", "write true or false"),
        "string_type": ("is not a text", "write a text, in quotes where it looks like a number"),
        "string_too_long": ("is too long", f"use at most {context.get('max_length')} characters"),
        "string_too_short": ("is empty", "write a name"),
        "string_pattern_mismatch": ("is not a plain id", "use lower-case letters, digits, dots and dashes"),
        "too_short": ("is an empty list", "name at least one"),
        "list_type": ("is not a list", "write [a, b]"),
        "model_type": ("is not a group of keys", "write the keys below it, one a line"),
        "dict_type": ("is not a group of keys", "write the keys below it, one a line"),
    }
    return plain.get(kind, (f"is not valid ({kind})", "see the commented scenario that `coral init DIR` writes"))


def _bounds_text(bounds: Mapping[str, Any]) -> str:
    """``, 0 or from 0.0001 to 1000000``."""
    return f", {'0 or ' if bounds['or_zero'] else ''}from {bounds['low']:.12g} to {bounds['high']:.12g}"


def _known_keys(key: Key) -> list[str]:
    """Keys allowed beside the last part of ``key``."""
    model: Any = Scenario
    for part in key[:-1]:
        if isinstance(part, int):
            continue
        field_info = model.model_fields.get(part)
        if field_info is None:
            return []
        model = ModelSection if part == "models" else next(iter(_models_in(field_info.annotation)), None)
        if model is None:
            return []
    return [info.alias or name for name, info in model.model_fields.items()]


def _models_in(annotation: object) -> list[type[BaseModel]]:
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


class _Loader(yaml.SafeLoader):
    """Safe YAML that also keeps each key's line and the keys that are there twice (YAML would keep the last).

    Numbers are decimal: 010, 0x10, 1_000 and 1:30, which YAML 1.1 takes for 8, 16, 1000 and 90, stay texts, and so do days.
    Tags (``!!int``) are refused; nothing that can be said in a scenario needs one.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.lines: dict[Key, int] = {}
        self.twice: list[tuple[str, int]] = []
        self.depth = 0
        self.values = 0

    def get_single_data(self) -> Any:
        """The document as plain values."""
        node = self.get_single_node()
        if node is None:
            return None
        self._walk(node, ())
        return self.construct_document(node)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As the base does, which calls itself for what is inside."""
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            raise yaml.MarkedYAMLError(problem=f"a tag ({event.tag}) is not taken", problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _walk(self, node: yaml.Node, path: Key) -> None:
        self.values += 1
        if len(path) > _DEEPEST:
            raise ValueError("an anchor refers to itself, or the file is nested too deeply")
        if self.values > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values, an alias counted as often as it is used")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key_node, value_node in node.value:
                key = (*path, str(key_node.value))
                if key[-1] in seen:
                    self.twice.append((show_key(key), key_node.start_mark.line + 1))
                seen.add(str(key[-1]))
                self.lines[key] = key_node.start_mark.line + 1
                self._walk(value_node, key)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                self._walk(item, (*path, index))


_TAG = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, text) for tag, text in known if tag not in {_TAG + "int", _TAG + "float", _TAG + "timestamp"}]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_TAG + "int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _TAG + "float",
    re.compile(
        r"[-+]?([0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(inf|Inf|INF))$"
        r"|\.(nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)
