"""The command of a component, for programs that Muster starts itself."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from torchx.specs import macros
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import ComponentNotFoundException, ComponentValidationException, get_component

from muster.errors import InvalidSpec
from muster.torchx.appdef import RANK0_HOST


def component_command(name: str, arguments: Sequence[str], field: str) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of a component's only pod. Raises `InvalidSpec` that names `field` for an unknown
    component, wrong arguments, and an app of several roles or pods."""
    output = io.StringIO()  # argparse prints what is wrong with the arguments
    try:
        with contextlib.redirect_stderr(output):
            app = materialize_appdef(get_component(name).fn, list(arguments))
    except (ComponentNotFoundException, ComponentValidationException, ValueError, SystemExit) as error:
        detail = output.getvalue().strip().rpartition("\n")[2] or str(error)
        raise InvalidSpec(
            f"{field}: must be a TorchX component with its arguments; got {name!r}: {detail}", field=field
        ) from error
    if len(app.roles) != 1 or app.roles[0].num_replicas != 1:
        pods = sum(role.num_replicas for role in app.roles)
        raise InvalidSpec(
            f"{field}: must be a component of one role with one pod; got {name!r} with {pods} pods", field=field
        )
    role = macros.Values(img_root="", app_id="bench", replica_id="0", rank0_env=RANK0_HOST).apply(app.roles[0])
    return [role.entrypoint, *role.args], {key: str(value) for key, value in role.env.items()}
