"""Jobs nested deeper than Python follows down: others are listed, and the error of that one names the field."""

from __future__ import annotations

import json

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import ALL_JOBS, JOBS, Fault, Handler, Server

from muster.api.yaml_input.undecodable import MAX_LEVELS
from muster.cli.output import print_json
from muster.errors import ClusterError

TOO_DEEP = "spec.roles[0].template.spec.odd.x.x.x.x: must be nested at most 64 levels deep"


def deep_job(levels: int) -> str:
    document = a_job("deep").model_dump(mode="json", by_alias=True, exclude_none=True)
    document["metadata"] |= {"namespace": "default", "uid": "u-deep", "resourceVersion": "7"}
    document["spec"]["roles"][0]["template"]["spec"]["odd"] = "ODD"
    return json.dumps(document).replace('"ODD"', '{"x":' * levels + "0" + "}" * levels)


def says(text: str) -> Fault:
    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    return answer


@pytest.mark.parametrize("levels", [60, 240, 800, 960, 1500, 9990])
def test_others_are_listed_and_the_one_that_is_too_deep_has_an_error_and_is_printed(
    server: Server, levels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    other = a_job("other").model_dump(mode="json", by_alias=True, exclude_none=True)
    server.fail("GET", ALL_JOBS, says(f'{{"metadata":{{}},"items":[{deep_job(levels)},{json.dumps(other)}]}}'))
    listing = server.client().job_list()
    assert [job.metadata.name for job in listing.jobs] == ["other"]
    (one,) = listing.unreadable
    assert (one.name, one.error.startswith(TOO_DEEP)) == ("default/deep", True)
    print_json([one.document])
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["metadata"]["name"] == "deep"
    odd, depth = printed["spec"]["roles"][0]["template"]["spec"]["odd"], 0
    while isinstance(odd, dict):
        odd, depth = odd["x"], depth + 1
    assert depth in (levels, MAX_LEVELS - 6, MAX_LEVELS - 8), "as deep as it is, or as it can be, alone or in a list"


@pytest.mark.parametrize("levels", [60, 960, 1500])
def test_the_error_of_one_that_is_read_by_name_names_the_field(server: Server, levels: int) -> None:
    server.fail("GET", f"{JOBS}/deep", says(deep_job(levels)))
    with pytest.raises(ClusterError, match="TrainingJob 'deep' cannot be read by this version of Muster") as caught:
        server.client().job("deep")
    assert TOO_DEEP in str(caught.value)
