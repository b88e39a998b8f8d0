"""Adds the callback with which transformers reports to Kubeflow, so that its Trainer reports by default.

transformers 5.23 and newer have it, for `report_to` all or kubeflow; the default is none. It reports to the endpoint of
`muster_components.launch.trainer_status`, or to that of a TrainJob. `DISABLE_KUBEFLOW_INTEGRATION=TRUE` turns it off.
"""

from __future__ import annotations

from typing import Any, Final

from muster_components.trainer.import_hook import when_imported

TRAINER_MODULE: Final = "transformers.trainer"


def install_transformers_hook() -> None:
    """Add it when `transformers.trainer` is imported."""
    when_imported(TRAINER_MODULE, _add_callback)


def _add_callback(module: Any) -> None:
    callbacks = getattr(module, "get_reporting_integration_callbacks", None)
    if callbacks is None:  # another version, which has none to add
        return

    def with_kubeflow(report_to: Any) -> list[Any]:
        from transformers.integrations import integration_utils  # type: ignore[import-untyped, unused-ignore]

        found: list[Any] = callbacks(report_to)
        kubeflow = getattr(integration_utils, "KubeflowCallback", None)
        is_available = getattr(integration_utils, "is_kubeflow_available", lambda: False)
        return [*found, kubeflow] if kubeflow is not None and is_available() and kubeflow not in found else found

    module.get_reporting_integration_callbacks = with_kubeflow
