"""CEL validation rules of the CRDs: one for each validator of `muster.api.spec`, and rules for updates.

Every rule names the validator that it repeats. A rule without one compares an object with its earlier version, which
`muster.api.spec` cannot. Lists and maps have bounds, because the API server refuses a CRD whose estimated rule cost is
too high.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from muster.api.quantity import FRACTIONAL_RESOURCES, HUGE_PAGES_PREFIX
from muster.api.spec import (
    MAX_JOB_NAME,
    ArraySpec,
    FailureRule,
    FlavorQuota,
    FlavorSpec,
    PodSpec,
    Queue,
    RoleSpec,
    TraceCapture,
    TraceRequest,
    TrainingJob,
    TrainingJobSpec,
)
from muster.api.spec.arrays import ARRAY_NAME_LENGTH
from muster.api.spec.fields import LABEL_KEY, LABEL_SYNTAX, MAX_LABEL_KEY, LabelSelectorRequirement
from muster.api.spec.jobs import MAX_POD_NAME, POD_NAME_SUFFIX_LENGTH
from muster.api.spec.pods import RESOURCE_CLAIMS_NOT_ALLOWED
from muster.model import MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """One line of `x-kubernetes-validations`.

    `expression` is CEL over `self`, and over `oldSelf` in rules for updates. `field` is relative to the object that has
    the rule. `validator` is the validator of `muster.api.spec` with the same meaning; empty for rules for updates.
    """

    expression: str
    message: str
    field: str = ""
    validator: str = ""
    exact_message: str = ""
    """CEL that chooses a more exact message; evaluated only when the rule is broken."""

    def as_schema(self) -> dict[str, str]:
        return (
            {"rule": self.expression, "message": self.message}
            | ({"messageExpression": self.exact_message} if self.exact_message else {})
            | ({"fieldPath": f".{self.field}"} if self.field else {})
        )


_OLD_CONDITIONS = "has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions"
_ADMITTED = f"({_OLD_CONDITIONS}.exists(c, c.type == 'Admitted' && c.status == 'True'))"
_STOPPING = f"({_OLD_CONDITIONS}.exists(c, c.type == 'Terminating' && c.status == 'True'))"
_FINISHED = f"({_OLD_CONDITIONS}.exists(c, c.type in ['Complete', 'Failed', 'Cancelled'] && c.status == 'True'))"
_PHASE_CHANGES = (
    "(has(self.status) && has(oldSelf.status) && has(self.status.phase) && has(oldSelf.status.phase) && "
    "self.status.phase != oldSelf.status.phase)"
)
"""Whether the request changes the status. `status` is a subresource, so such a request cannot change the spec, and the
rules skip the comparison of whole specs, the most expensive part of a validation."""

_SUSPEND_FIRST = "cannot be changed while the job is admitted; suspend it first"


def _same(field: str, new: str, old: str) -> str:
    """CEL: an optional field is equal, or absent on both sides."""
    return f"has({new}.{field}) == has({old}.{field}) && (!has({new}.{field}) || {new}.{field} == {old}.{field})"


def _first_broken(checks: Mapping[str, str]) -> str:
    """CEL: the message of the first of these expressions that does not hold."""
    *first, (last, _) = checks.items()
    return "".join(f"!({check}) ? '{message}' : " for message, check in first) + f"'{last}'"


def _not_allowed(field: str, instead: str) -> ValidationRule:
    return ValidationRule(f"!has(self.{field})", f"{field} must not be set: {instead}", field, to_snake(field))


_SAME_ROLE = " && ".join(
    (
        "o.name == r.name && o.essential == r.essential && o.template == r.template",
        _same("flavors", "r", "o"),
        _same("topology", "r", "o"),
    )
)


def _amount(place: str) -> str:
    """CEL: a quantity, which YAML may have as an integer or a string.

    `string(...)` would be simpler, but Kubernetes 1.29 estimates its result as long as a request and refuses the CRD.
    """
    return f"(type({place}) == int ? quantity('0').add(int({place})) : quantity({place}))"


def _total_within_bounds(amounts: str) -> str:
    """CEL: each amount is at most MAX_AMOUNT divided by `replicas`, because a product would be a float. For CPU the
    limit is a whole number of cores, up to one core less than that of the validator."""
    limit = f"quantity('0').add({MAX_AMOUNT} / (self.replicas * (k == 'cpu' ? 1000 : 1)))"
    return f"!has({amounts}) || [{amounts}].all(m, m.all(k, {_amount('m[k]')}.compareTo({limit}) <= 0))"


def _is_whole_number(amount: str) -> str:
    """CEL: whether a quantity is exactly a whole number. `isInteger` is false for 2000m, and floats above 2^52 have no
    fractions. So the quantity's float is subtracted, and the small rest is compared exactly."""
    rest = f"q.sub(int(q.asApproximateFloat())).add({_FLOAT_ERROR})"
    same = "r.compareTo(quantity('0').add(int(r.asApproximateFloat() + 0.5))) == 0"
    return f"[{amount}].all(q, q.isInteger() || [{rest}].all(r, {same}))"


_FLOAT_ERROR = 8192
"""The float of a quantity of at most 2^62 differs from it by at most eight units in the last place."""


QUANTITY_RULES = (
    ValidationRule(
        f"self.all(k, {_amount('self[k]')}.compareTo(quantity(k == 'cpu' ? '{MAX_AMOUNT}m' : '{MAX_AMOUNT}')) <= 0)",
        "each amount must be less than 2^62",
        validator="Quantities",
    ),
    ValidationRule(
        f"self.all(k, k in {list(FRACTIONAL_RESOURCES)} || k.startsWith('{HUGE_PAGES_PREFIX}') || type(self[k]) "
        f"== int || "
        f"{_is_whole_number(_amount('self[k]'))})",
        "the amount of a resource other than CPU, memory and storage must be a whole number",
        validator="Quantities",
    ),
)
"""Rules of every map of quantities."""

LABEL_RULES = (
    ValidationRule(
        f"self.all(k, k.size() <= {MAX_LABEL_KEY} && k.matches('{LABEL_KEY}'))",
        f"a name must be {LABEL_SYNTAX}",
        validator="Labels",
    ),
)
"""Rules of every map of labels."""

_ELASTIC = "has(r.minReplicas) && r.minReplicas < r.replicas"
_MUTABLE_WHEN_FINISHED = ("ttl_seconds_after_finished", "array")  # the indices of an array have a rule of their own
_SAME_BUT_TTL = " && ".join(
    _same(field.alias or name, "self.spec", "oldSelf.spec")
    for name, field in TrainingJobSpec.model_fields.items()
    if name not in _MUTABLE_WHEN_FINISHED
)

_WHILE_ADMITTED = {
    # Until its pods have ended, a suspended job is charged to the queue that it was admitted to.
    f"spec.queue {_SUSPEND_FIRST}, and wait until its pods have ended": (
        f"!({_ADMITTED} || {_STOPPING}) || self.spec.queue == oldSelf.spec.queue"
    ),
    f"spec.flavors {_SUSPEND_FIRST}": f"!{_ADMITTED} || ({_same('flavors', 'self.spec', 'oldSelf.spec')})",
    f"spec.topology {_SUSPEND_FIRST}": f"!{_ADMITTED} || ({_same('topology', 'self.spec', 'oldSelf.spec')})",
    f"spec.roles {_SUSPEND_FIRST}; only replicas and minReplicas can": (
        f"!{_ADMITTED} || (self.spec.roles.size() == oldSelf.spec.roles.size() && "
        f"self.spec.roles.all(r, oldSelf.spec.roles.exists(o, {_SAME_ROLE})))"
    ),
}
"""By message: what must hold when a job that has not finished is changed."""

VALIDATION_RULES: Mapping[type[BaseModel], tuple[ValidationRule, ...]] = {
    TrainingJob: (
        ValidationRule(
            f"self.metadata.name.size() <= {MAX_JOB_NAME} && !self.metadata.name.contains('.')",
            f"must be at most {MAX_JOB_NAME} lower-case letters, digits and '-', because names of pods begin with it",
            "metadata.name",
            validator="_name_fits_into_pod_names",
        ),
        ValidationRule(
            f"self.spec.roles.all(r, self.metadata.name.size() + r.name.size() + string(r.replicas - 1).size() "
            f"+ (has(self.spec.array) ? {ARRAY_NAME_LENGTH} : 0) <= {MAX_POD_NAME - POD_NAME_SUFFIX_LENGTH})",
            f"names of pods (JOB-ROLE-INDEX-12345) must have at most {MAX_POD_NAME} characters; shorten the name of "
            "the job or of the role",
            "metadata.name",
            validator="_pod_names_fit_into_host_names",
        ),
        ValidationRule(
            "!has(self.spec.dependsOn) || self.spec.dependsOn.all(d, d.job != self.metadata.name)",
            "must not name the job itself",
            "spec.dependsOn",
            validator="_depends_on_others",
        ),
        # One rule, because the API server evaluates all rules also for each write of the status.
        ValidationRule(
            f"{_PHASE_CHANGES} || ({_FINISHED} ? {_SAME_BUT_TTL} : "
            f"{' && '.join(f'({check})' for check in _WHILE_ADMITTED.values())})",
            "while the job is admitted, queue, flavors, topology and roles cannot be changed; after it has finished, "
            "only ttlSecondsAfterFinished can",
            "spec",
            exact_message=f"{_FINISHED} ? 'only spec.ttlSecondsAfterFinished can be changed after the job has "
            f"finished; submit a new job under another name' : {_first_broken(_WHILE_ADMITTED)}",
        ),
    ),
    TrainingJobSpec: (
        ValidationRule(
            "!has(self.priorityClassName) || self.priority == 0",
            "must not be set together with priority",
            "priorityClassName",
            validator="_one_priority",
        ),
        ValidationRule(
            "self.roles.exists(r, r.essential)",
            "at least one role must be essential, else the job cannot complete",
            "roles",
            validator="_can_complete",
        ),
        ValidationRule(
            f"!has(self.elasticReplicas) || self.roles.filter(r, {_ELASTIC}).size() == 1",
            "requires exactly one elastic role (minReplicas less than replicas)",
            "elasticReplicas",
            validator="_one_elastic_role",
        ),
        ValidationRule(
            f"!has(self.elasticReplicas) || self.roles.all(r, !({_ELASTIC}) || "
            "(r.minReplicas <= self.elasticReplicas && self.elasticReplicas <= r.replicas))",
            "must be from minReplicas to replicas of the elastic role",
            "elasticReplicas",
            validator="_elastic_within_role",
        ),
        ValidationRule(
            "!has(self.array) || !has(self.trace)",
            "must not be set together with array",
            "trace",
            validator="_array_without_traces",
        ),
        ValidationRule(
            "has(self.array) || !has(self.dependsOn) || !self.dependsOn.exists(d, d.eachIndex)",
            "eachIndex must not be true without array",
            "dependsOn",
            validator="_each_index_of_an_array",
        ),
        ValidationRule("has(self.array) == has(oldSelf.array)", "must not be added or removed", "array"),
        ValidationRule(
            "!has(self.beginTime) || !has(self.startDeadline) || self.startDeadline > self.beginTime",
            "must be after beginTime",
            "startDeadline",
            validator="_deadline_after_begin",
        ),
        ValidationRule(
            "!oldSelf.cancel || self.cancel", "must not be changed from true to false; submit a new job", "cancel"
        ),
    ),
    ArraySpec: (
        ValidationRule("self.indices == oldSelf.indices", "must not be changed; submit another array", "indices"),
        ValidationRule("self.retries >= oldSelf.retries", "must not be lowered", "retries"),
    ),
    RoleSpec: (
        ValidationRule(
            "!has(self.minReplicas) || self.minReplicas <= self.replicas",
            "must be at most replicas",
            "minReplicas",
            validator="_min_within_replicas",
        ),
        ValidationRule(
            "self.replicas <= 1 || self.template.spec.containers.all(c, !has(c.resources) || [c.resources].all(r, "
            f"({_total_within_bounds('r.limits')}) && ({_total_within_bounds('r.requests')}))) && "
            f"(!has(self.template.spec.resources) || "
            f"[self.template.spec.resources].all(r, ({_total_within_bounds('r.limits')}) && "
            f"({_total_within_bounds('r.requests')})))",
            "each resource of all pods together must be less than 2^62; lower replicas or the request",
            "replicas",
            validator="_total_can_be_counted",
        ),
    ),
    TraceRequest: (
        ValidationRule(
            "!has(self.every) || self.every > self.steps",
            "must be above steps",
            "every",
            validator="_every_above_steps",
        ),
    ),
    TraceCapture: (ValidationRule("self.spec == oldSelf.spec", "must not be changed; create another one", "spec"),),
    FailureRule: (
        ValidationRule(
            "(has(self.onExitCodes) && self.onExitCodes.size() > 0) || "
            "(has(self.onPodConditions) && self.onPodConditions.size() > 0)",
            "must have onExitCodes or onPodConditions",
            validator="_matches_something",
        ),
    ),
    PodSpec: (
        _not_allowed("nodeName", "Muster chooses the node"),
        _not_allowed("schedulerName", "Muster chooses the node"),
        _not_allowed("priorityClassName", "pods have Muster's own; set spec.priorityClassName of the job"),
        ValidationRule(
            "!has(self.resourceClaims) || self.resourceClaims.size() == 0",
            RESOURCE_CLAIMS_NOT_ALLOWED,
            "resourceClaims",
            validator="_no_resource_claims",
        ),
    ),
    LabelSelectorRequirement: (
        ValidationRule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "must be set with In and NotIn, and empty with Exists and DoesNotExist",
            "values",
            validator="_values_where_they_are_compared",
        ),
    ),
    Queue: (
        ValidationRule(
            "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "must not be the queue itself; name another queue, or leave it out for a root",
            "spec.parent",
        ),
    ),
    FlavorQuota: (
        ValidationRule(
            "!has(self.guaranteed) || !has(self.limit) || self.guaranteed.all(k, !(k in self.limit) || "
            f"{_amount('self.guaranteed[k]')}.compareTo({_amount('self.limit[k]')}) <= 0)",
            "each amount must be at most the limit of its resource",
            "guaranteed",
            validator="_guaranteed_within_limit",
        ),
    ),
    FlavorSpec: (
        ValidationRule(
            "!has(self.topology) || self.topology.all(a, self.topology.exists_one(b, b.nodeLabel == a.nodeLabel))",
            "the nodeLabel of each level must be unique",
            "topology",
            validator="_labels_once",
        ),
    ),
}
