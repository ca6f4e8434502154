"""What model servers speak, from their own clients: CloudEvents, the Open Inference Protocol, and OpenAPI."""

# ruff: noqa: E402
from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import ALL, WHY, replay, rows_of, wait_for
from test_service_alarms import Sink

from reprior.client import Client
from reprior.service.server import Background
from reprior.service.settings import Settings

SOURCE = [70, 20, 10]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Background(Settings(tmp_path_factory.mktemp("db") / "s.db")) as running:
        yield running


@pytest.fixture
def name(server, request):
    made = "".join(c if c.isalnum() else "-" for c in request.node.name)
    with Client(server.url) as client:
        client.put(made, SOURCE)
    return made


# Open Inference Protocol


def infer(server, name, body, **headers):
    return httpx.post(f"{server.url}/v2/models/{name}/infer", headers=headers, **body)


def test_infer_corrects_in_the_request_path(server, name):
    rows = rows_of(8, 3)
    body = {
        "id": "7",
        "inputs": [{"name": "proba", "shape": [8, 3], "datatype": "FP64", "data": rows.ravel().tolist()}],
    }
    answer = infer(server, name, {"json": body}).json()
    stream = replay(SOURCE, [rows])
    assert (answer["model_name"], answer["id"], answer["parameters"]) == (name, "7", {"n": 8, "repeated": False})
    first, second = answer["outputs"]
    assert (first["name"], first["shape"], first["datatype"]) == ("proba", [8, 3], "FP64")
    assert first["data"] == stream.correct_many(rows).ravel().tolist()
    assert (second["name"], second["data"]) == ("prior", stream.prior.tolist())
    body["parameters"] = {"client": "a", "seq": 1}
    assert infer(server, name, {"json": body}).json()["parameters"]["n"] == 16
    assert infer(server, name, {"json": body}).json()["parameters"] == {"n": 16, "repeated": True}


@pytest.mark.parametrize(("change", "message"), [
    ({"datatype": "INT32"}, "`datatype` must be one of FP16"), ({"shape": [1, 4]}, "`data` must hold 1 times 4"),
    ({"shape": [3]}, "two whole numbers"), ({"data": "x"}, "list of numbers"), ({"data": [[1, 0], [1]]}, "rectangular"),
    ({"data": [0.5, 0.6, 0.7]}, "sum to 1"), ({"shape": [1, 2], "data": [1, 0]}, "3 columns"),
    ({"parameters": {"binary_data_size": 12}}, "bytes behind"),
    ({"parameters": {"binary_data_size": -1}}, "whole number"),
])  # fmt: skip
def test_a_bad_tensor_is_refused(server, name, change, message):
    tensor = {"name": "proba", "shape": [1, 3], "datatype": "FP32", "data": [0.2, 0.3, 0.5], **change}
    answer = infer(server, name, {"json": {"inputs": [tensor]}})
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert httpx.get(f"{server.url}/streams/{name}").json()["n"] == 0


def test_binary_tensors_by_hand(server, name):
    rows = rows_of(4, 3).astype("<f4")
    head = {"inputs": [{"name": "proba", "shape": [4, 3], "datatype": "FP32", "parameters": {"binary_data_size": 48}}],
            "outputs": [{"name": "proba", "parameters": {"binary_data": True}}]}  # fmt: skip
    text = json.dumps(head).encode()
    answer = infer(
        server, name, {"content": text + rows.tobytes()}, **{"Inference-Header-Content-Length": str(len(text))}
    )
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 48}
    expected = replay(SOURCE, [rows]).correct_many(rows)
    np.testing.assert_array_equal(np.frombuffer(answer.content[length:], "<f4").reshape(4, 3), expected)
    for bad in ("x", "9" * 9):
        assert infer(server, name, {"content": text}, **{"Inference-Header-Content-Length": bad}).status_code == 400


@pytest.mark.parametrize("binary", [True, False])
def test_the_real_triton_client(server, name, binary):
    triton = pytest.importorskip("tritonclient.http", reason=WHY)
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(name)
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["name"] == "reprior"
    assert client.get_model_metadata(name)["inputs"] == [{"name": "proba", "datatype": "FP32", "shape": [-1, 3]}]
    rows = rows_of(16, 3).astype(np.float32)
    inputs = triton.InferInput("proba", rows.shape, "FP32")
    inputs.set_data_from_numpy(rows, binary_data=binary)
    wanted = [triton.InferRequestedOutput(output, binary_data=binary) for output in ("proba", "prior")]
    answer = client.infer(name, [inputs], outputs=wanted, request_id="r1")
    stream = replay(SOURCE, [rows if binary else rows.astype(np.float64)])
    np.testing.assert_allclose(answer.as_numpy("proba"), stream.correct_many(rows), rtol=1e-6)
    np.testing.assert_array_equal(answer.as_numpy("prior"), stream.prior)
    assert answer.get_response()["id"] == "r1"
    default = client.infer(name, [inputs])
    assert default.as_numpy("proba").shape == (16, 3)
    with pytest.raises(triton.InferenceServerException if hasattr(triton, "InferenceServerException") else Exception,
                       match="no stream"):  # fmt: skip
        client.infer("nope", [inputs])
    client.close()


# CloudEvents


def kserve(name, number, **more):
    """The headers that KServe's payload logger sends."""
    return {"ce-specversion": "1.0", "ce-id": number, "ce-source": "http://localhost:9081/",
            "ce-type": "org.kubeflow.serving.inference.response", "ce-inferenceservicename": name,
            "ce-namespace": "default", "ce-component": "predictor", "ce-endpoint": "default",
            "ce-time": "2024-05-01T10:00:00Z", "Content-Type": "application/json", **more}  # fmt: skip


def test_kserve_payloads_are_learned_once(server, name):
    rows, url = rows_of(5, 3), f"{server.url}/events/cloudevents"
    v1 = {"predictions": rows.tolist()}
    v2 = {"model_name": "m", "outputs": [
        {"name": "label", "shape": [5, 1], "datatype": "INT64", "data": [0] * 5},
        {"name": "probabilities", "shape": [5, 3], "datatype": "FP32", "data": rows.ravel().tolist()}]}  # fmt: skip
    assert httpx.post(url, json=v1, headers=kserve(name, "1")).json() == {"taken": True, "repeated": False, "n": 5}
    assert httpx.post(url, json=v1, headers=kserve(name, "1")).json() == {"taken": False, "repeated": True, "n": 5}
    assert httpx.post(url, json=v2, headers=kserve(name, "2")).json()["n"] == 10
    asked = kserve(name, "3", **{"ce-type": "org.kubeflow.serving.inference.request"})
    assert httpx.post(url, json={"instances": [[1, 2]]}, headers=asked).json()["taken"] is False
    assert httpx.get(f"{server.url}/streams/{name}").json()["prior"] == replay(SOURCE, [rows, rows]).prior.tolist()
    for change, status, message in (
        ({"ce-specversion": "0.3"}, 400, "be 1.0"), ({"ce-id": ""}, 400, "`id` must be given"),
        ({"ce-inferenceservicename": "nope"}, 404, "no stream"),
        ({"ce-inferenceservicename": ""}, 400, "name the stream"),
    ):  # fmt: skip
        answer = httpx.post(url, json=v1, headers=kserve(name, "9", **change))
        assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    for body, message in (({}, "neither"), ({"predictions": [0.5]}, "each a list"), ({"outputs": []}, "0 of them")):
        assert message in httpx.post(url, json=body, headers=kserve(name, "10")).json()["error"]
    good = httpx.post(url, json=v1, headers=kserve(name, "10"))  # what was refused may be sent again under its id
    assert good.json()["n"] == 15


def test_events_are_known_after_a_restart(tmp_path):
    body = {"predictions": rows_of(5, 3).tolist()}
    for taken in (True, False):
        with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
            client.put("s", SOURCE)
            answer = httpx.post(f"{running.url}/events/cloudevents", json=body, headers=kserve("s", "1")).json()
            assert (answer["taken"], answer["n"]) == (taken, 5)


@pytest.mark.parametrize("form", ["to_binary", "to_structured"])
def test_the_real_cloudevents_client(server, name, form):
    http = pytest.importorskip("cloudevents.v1.http", reason=WHY)
    from cloudevents.v1 import conversion

    about = {"type": "org.kubeflow.serving.inference.response", "source": "test", "inferenceservicename": name}
    event = http.CloudEvent(about, {"predictions": [[0.2, 0.3, 0.5]]})
    headers, body = getattr(conversion, form)(event)
    for repeated in (False, True):
        answer = httpx.post(f"{server.url}/events/cloudevents", content=body, headers=headers).json()
        assert (answer["n"], answer["repeated"]) == (1, repeated)


def test_events_go_on_to_a_second_sink(tmp_path):
    sink = Sink()
    try:
        with Background(Settings(tmp_path / "s.db", forward=sink.url)) as running, Client(running.url) as client:
            client.put("s", SOURCE)
            body = json.dumps({"predictions": [[0.2, 0.3, 0.5]]}).encode()
            httpx.post(f"{running.url}/events/cloudevents", content=body, headers=kserve("s", "1"))
            wait_for(lambda: sink.got)
    finally:
        sink.close()
    headers, got = sink.got[0]
    assert got == body
    assert (headers["ce-id"], headers["ce-inferenceservicename"]) == ("1", "s")


# OpenAPI


@pytest.mark.skipif(not ALL, reason=WHY)
@pytest.mark.filterwarnings("default")
def test_schemathesis_finds_no_fault(tmp_path):
    import subprocess
    import sys
    from pathlib import Path

    with Background(Settings(tmp_path / "s.db")) as running:
        with Client(running.url) as client:
            client.put("known", SOURCE, alarm={"exact": True})
            client.put("other", [1, 1])
        # the server's own description, with names that are there: an invented one only meets 404
        described = httpx.get(f"{running.url}/openapi.json").json()
        for path in described["paths"].values():
            for operation in path.values():
                for parameter in operation["parameters"]:
                    if parameter["name"] == "name":
                        parameter["schema"] = {"enum": ["known", "other", "new one"]}
        (tmp_path / "openapi.json").write_text(json.dumps(described))
        line = [str(Path(sys.executable).with_name("st")), "run", "openapi.json", "--url", running.url,
                "--max-examples", "60", "--checks", "all", "--request-timeout", "20",
                # tokens are asked for elsewhere; what JSON Schema cannot say (rows that sum to 1) is refused
                "--exclude-checks", "ignored_auth,positive_data_acceptance", "--exclude-path", "/events",
                "--phases", "examples,coverage,fuzzing", "--generation-deterministic"]  # fmt: skip
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False)
        assert done.returncode == 0, done.stdout[-6000:]
        assert httpx.get(f"{running.url}/healthz").json()["ok"]
