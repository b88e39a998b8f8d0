"""Suites as written: what is valid, what is refused and how, variants, components."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.support import has

from muster.bench.suite import Suite, parse_suite, resolve_suite, suite_name
from muster.errors import InvalidSpec

MINIMAL = "benchmarks: [{name: one, command: [python, one.py]}]"


def resolved(text: str, file: str = "gate.yaml") -> Suite:
    return resolve_suite(parse_suite(text, file), Path(file), {})


def test_a_suite_of_one_command_has_these_defaults() -> None:
    suite = resolved(MINIMAL)
    (one,) = suite.benchmarks
    assert (suite.name, suite.spec.queue, suite.folder) == ("gate", "default", Path.cwd())
    assert (one.name, one.command, one.warmup, one.metric, one.trace_steps) == (
        "one",
        ("python", "one.py"),
        3,
        "wall",
        "",
    )
    criteria = suite.criteria
    assert (criteria.false_alarm_rate, criteria.threshold, criteria.precision) == (0.025, 0.01, 0.01)
    assert (criteria.min_pairs, criteria.max_pairs) == (12, 24)


def test_each_variant_is_a_benchmark_with_its_environment_and_all_share_the_rate_of_false_alarms() -> None:
    suite = resolved(
        "benchmarks:\n"
        "- {name: a, command: [x], env: {SIZE: '1', MODE: m}, variants: {small: {}, large: {SIZE: '9'}},"
        " trace: {startStep: 5, steps: 3}}\n"
        "- {name: b, command: [y], quantile: 0.25}\n"
    )
    assert [one.quantile for one in suite.benchmarks] == [0.5, 0.5, 0.25]
    assert [(one.name, one.env, one.trace_steps) for one in suite.benchmarks] == [
        ("a.small", {"SIZE": "1", "MODE": "m"}, "5:8"),
        ("a.large", {"SIZE": "9", "MODE": "m"}, "5:8"),
        ("b", {}, ""),
    ]
    assert suite.criteria.false_alarm_rate == pytest.approx(0.025 / 3)


def test_a_component_is_run_by_its_command_and_environment() -> None:
    spec = parse_suite("benchmarks: [{name: t, component: muster.train.fsdp, args: [-j, 1x1], env: {A: b}}]", "s.yaml")
    suite = resolve_suite(spec, Path("s.yaml"), {"t": (["python", "-m", "trainer"], {"A": "a", "C": "c"})})
    assert suite.benchmarks[0].command == ("python", "-m", "trainer")
    assert suite.benchmarks[0].env == {"A": "b", "C": "c"}


def test_a_suite_survives_its_file_of_results() -> None:
    suite = resolved("benchmarks: [{name: a, command: [x], variants: {v: {A: b}}}]\ncriteria: {minRuns: 6, maxRuns: 8}")
    again = Suite.from_json(suite.as_json())
    assert (again.name, again.benchmarks, again.criteria) == (suite.name, suite.benchmarks, suite.criteria)
    with pytest.raises(InvalidSpec, match="no valid suite"):
        Suite.from_json({"name": "x"})


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("benchmarks: []", "benchmarks", "must not be empty"),
        ("queue: q", "benchmarks", "is required"),
        ("[]", "", "must be a mapping; got a list"),
        ("{}\n---\n{}", "", "must contain one document; got 2"),
        (f"{MINIMAL}\nrepetitions: 3", "repetitions", "unknown field; known here: name, queue"),
        ("benchmarks: [{name: one, comand: [x]}]", "benchmarks[0].comand", "unknown field; did you mean 'command'?"),
        ("benchmarks: [{name: One, command: [x]}]", "benchmarks[0].name", "lower-case letters"),
        (
            "benchmarks: [{name: a, command: [x]}, {name: a, command: [y]}]",
            "benchmarks",
            "name must be unique; got 'a'",
        ),
        ("benchmarks: [{name: a}]", "benchmarks[0]", "must have either command or component; got neither"),
        ("benchmarks: [{name: a, command: [x], component: c}]", "benchmarks[0]", "command or component; got both"),
        ("benchmarks: [{name: a, command: [x], args: [y]}]", "benchmarks[0].args", "must be set with component only"),
        ("benchmarks: [{name: a, command: x}]", "benchmarks[0].command", "must be a list; got 'x'"),
        ("benchmarks: [{name: a, command: [x], env: {A: 1}}]", "benchmarks[0].env.A", "must be a string; got 1"),
        ("benchmarks: [{name: a, command: [x], env: {A-B: x}}]", "benchmarks[0].env", "names of variables"),
        ("benchmarks: [{name: a, command: [x], env: {MUSTER_JOB: x}}]", "benchmarks[0].env", "got 'MUSTER_JOB'"),
        ("benchmarks: [{name: a, command: [x], metric: time}]", "benchmarks[0].metric", "must be 'wall', 'cpu' or"),
        ("benchmarks: [{name: a, command: [x], quantile: 1}]", "benchmarks[0].quantile", "must be less than 1; got 1"),
        ("benchmarks: [{name: a, command: [x], warmup: -1}]", "benchmarks[0].warmup", "must be at least 0; got -1"),
        (f"{MINIMAL}\ncriteria: {{minRuns: 4}}", "criteria.minRuns", "must be at least 5; got 4"),
        (f"{MINIMAL}\ncriteria: {{minRuns: 30}}", "criteria.minRuns", "must be at most maxRuns (24); got 30"),
        (f"{MINIMAL}\ncriteria: {{falseAlarmRate: 0}}", "criteria.falseAlarmRate", "must be greater than 0; got 0"),
        (f"{MINIMAL}\ncriteria: {{precision: .nan}}", "criteria.precision", "must be a finite number; got nan"),
        (f"{MINIMAL}\nresources: {{cpu: x}}", "resources.cpu", "x"),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_what_is_valid(text: str, field: str, message: str) -> None:
    with pytest.raises(InvalidSpec, check=has(message, "s.yaml", field=field)):
        parse_suite(text, "s.yaml")


def test_a_file_name_becomes_a_name_for_jobs() -> None:
    assert suite_name(Path("My Suite_2.yaml")) == "my-suite-2"
    assert suite_name(Path("---.yaml")) == "suite"
