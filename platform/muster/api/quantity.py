"""Kubernetes quantities ("500m", "16Gi", 8) to whole numbers and back.

`cpu` is counted in milli-cores, everything else in whole units (memory in bytes), as in `muster.model`.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal, localcontext

from muster.model import MAX_AMOUNT

_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_UNITS = sorted(((int(unit), suffix) for suffix, unit in _SUFFIX.items() if unit > 1), reverse=True)
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i|)")
FRACTIONAL_RESOURCES = ("cpu", "memory", "ephemeral-storage")
HUGE_PAGES_PREFIX = "hugepages-"
"""Resources of which Kubernetes accepts a fraction: names, and a prefix of names."""
MAX_QUANTITY = 40
"""Maximum length of a quantity in user input."""
_NANO = Decimal("1e-9")  # Kubernetes rounds smaller fractions up


def parse_quantity(value: str | float, resource: str) -> int:
    """The amount in the unit of `resource`, rounded up. Raises ValueError with the valid form and the value."""
    return int(_bounded_decimal(value, resource).to_integral_value(rounding=ROUND_CEILING))


def clamp_quantity(value: str | float, resource: str) -> int:
    """The amount of a value that the API server has accepted; raises nothing. A larger amount counts as `MAX_AMOUNT`,
    an invalid one as 0."""
    try:
        return min(int(_to_decimal(value, resource).to_integral_value(rounding=ROUND_CEILING)), MAX_AMOUNT)
    except ValueError:
        return 0


def check_quantity(value: str | float, resource: str) -> None:
    """Raise ValueError as `parse_quantity` does, and for a fraction of a resource that Kubernetes counts in whole
    numbers: all but CPU, memory and storage."""
    with localcontext(prec=80):  # exact: the API server takes at most 40 characters
        amount = _bounded_decimal(value, resource).quantize(_NANO, ROUND_CEILING)
    if (
        resource not in FRACTIONAL_RESOURCES
        and not resource.startswith(HUGE_PAGES_PREFIX)
        and amount != amount.to_integral_value()
    ):
        raise ValueError(f"{resource}: must be a whole number; got {value!r}")


def _bounded_decimal(value: str | float, resource: str) -> Decimal:
    if isinstance(value, str) and len(value) > MAX_QUANTITY:
        raise ValueError(f"{resource}: must have at most {MAX_QUANTITY} characters; got {len(value)}")
    amount = _to_decimal(value, resource)
    if amount > MAX_AMOUNT:
        raise ValueError(f"{resource}: must be less than 2^62; got {value!r}")
    return amount


def _to_decimal(value: str | float, resource: str) -> Decimal:
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    if not match:
        raise ValueError(
            f"{resource}: must be a quantity, a number with an optional suffix such as 500m, 2 or 16Gi; got {value!r}"
        )
    number, suffix = match.groups()
    unit = _SUFFIX[suffix] if suffix in _SUFFIX else Decimal(f"1{suffix}")
    amount = Decimal(number) * unit * (1000 if resource == "cpu" else 1)
    if number.startswith("-"):
        raise ValueError(f"{resource}: must be at least 0; got {value!r}")
    return amount


def format_quantity(amount: int, resource: str) -> str:
    """The exact amount as a Kubernetes quantity: cpu 1500 -> "1500m"; bytes in the largest binary or decimal unit that
    divides them: 2**30 -> "1Gi", 10**18 -> "1E"."""
    if resource == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for unit, suffix in _UNITS:
            if amount and amount % unit == 0:
                return f"{amount // unit}{suffix}"
    return str(amount)


def whole_cores(cpu_milli: int) -> int:
    """Milli-cores as CPU cores, rounded up."""
    return -(-cpu_milli // 1000)
