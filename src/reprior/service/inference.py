"""What model servers already speak: the Open Inference Protocol v2, and CloudEvents of KServe's payload logger."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from reprior._check import as_array, fail
from reprior._types import Matrix
from reprior.service.errors import Conflict, Unavailable
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.served import ServedStream
from reprior.service.views import stream_of
from reprior.service.wire import answer, content_type, json_bytes, parse, parse_json, read_body

FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
LENGTH = "inference-header-content-length"
RESPONSE = "org.kubeflow.serving.inference.response"
REQUEST = "org.kubeflow.serving.inference.request"
NAMESPACE = "cloudevents:namespace"  # among a stream's cursors: the namespace that its events come from


# Open Inference Protocol v2


async def server_live(hub: Hub, request: Request) -> dict[str, Any]:
    return {"live": True}


async def server_ready(hub: Hub, request: Request) -> dict[str, Any]:
    if hub.trouble:
        raise Unavailable(hub.trouble)
    return {"ready": True}


async def server_about(hub: Hub, request: Request) -> dict[str, Any]:
    return {"name": "reprior", "version": version("reprior"), "extensions": ["binary_tensor_data"]}


async def model_ready(hub: Hub, request: Request) -> dict[str, Any]:
    return {"name": stream_of(hub, request).name, "ready": True}


async def get_model(hub: Hub, request: Request) -> dict[str, Any]:
    """Return the metadata of a stream as of a model."""
    served = stream_of(hub, request)
    shape = [-1, served.n_classes]
    return {
        "name": served.name, "versions": ["1"], "platform": "reprior",
        "inputs": [{"name": "proba", "datatype": "FP32", "shape": shape}],
        "outputs": [{"name": "proba", "datatype": "FP32", "shape": shape},
                    {"name": "prior", "datatype": "FP64", "shape": [served.n_classes]}],
    }  # fmt: skip


async def post_infer(hub: Hub, request: Request) -> Response:
    """Learn the rows of a request and answer with them corrected, as the protocol wants it."""
    body = await read_body(request)
    served = stream_of(hub, request)
    length = request.headers.get(LENGTH, str(len(body)))  # of the JSON part; raw numbers may follow
    if not length.isdigit() or int(length) > len(body):
        fail("infer", "Inference-Header-Content-Length", "be the length of the JSON part", repr(length)[:80])
    head, rest = parse(body[: int(length)], "application/json", "infer"), body[int(length) :]
    rows = input_rows(head.get("inputs"), rest, served.n_classes)
    parameters = head.get("parameters") or {}
    if not isinstance(parameters, dict):
        fail("infer", "parameters", "be an object", type(parameters).__name__)
    client, seq = check_seq(parameters.get("client"), parameters.get("seq"))
    wanted = outputs_wanted(head.get("outputs"), parameters.get("binary_data_output") is True)
    learned = await hub.posts.samples(served.name, Post(rows, client, seq))
    outputs: list[dict[str, Any]] = []
    behind = b""
    for name, binary in wanted:
        values = np.ascontiguousarray(learned.proba if name == "proba" else learned.prior)
        outputs.append({"name": name, "shape": list(values.shape), "datatype": f"FP{8 * values.dtype.itemsize}"})
        if binary:
            outputs[-1]["parameters"] = {"binary_data_size": values.nbytes}
            behind += values.tobytes()
        else:
            outputs[-1]["data"] = values.ravel()
    reply: dict[str, Any] = {"model_name": served.name, "model_version": "1", "outputs": outputs}
    if isinstance(head.get("id"), str):
        reply["id"] = head["id"]
    reply["parameters"] = {"n": learned.n, "repeated": learned.repeated}
    if not any(binary for _, binary in wanted):
        return answer(reply)
    text = json_bytes(reply)
    return Response(text + behind, headers={LENGTH: str(len(text))}, media_type="application/octet-stream")


def input_rows(inputs: Any, rest: bytes, n_classes: int) -> Matrix:
    """Return the rows (n, K) of the one tensor in a request, whose numbers may be the bytes behind the JSON part."""
    if not isinstance(inputs, list) or len(inputs) != 1:
        fail("infer", "inputs", "hold one tensor, the probabilities", "something else")
    parameters = inputs[0].get("parameters") if isinstance(inputs[0], dict) else None
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None and (type(size) is not int or size < 0):
        fail("infer", "binary_data_size", "be a whole number", repr(size)[:80])
    if (size is None and rest) or (size is not None and size != len(rest)):
        fail("infer", "binary_data_size", "be the bytes behind the JSON part", f"{size} with {len(rest)} bytes")
    rows = tensor(inputs[0], None if size is None else rest)
    if rows.shape[1] != n_classes:
        fail("infer", "shape", f"have {n_classes} columns, one for each class of the stream", rows.shape[1])
    return rows.astype(np.float32) if rows.dtype.itemsize == 2 else rows


def tensor(about: Any, binary: bytes | None) -> Matrix:
    """Return the numbers of a tensor in its shape, from JSON or from the bytes behind it."""
    if not isinstance(about, dict):
        fail("infer", "inputs", "hold objects", type(about).__name__)
    kind, shape = about.get("datatype"), about.get("shape")
    if not isinstance(kind, str) or kind not in FLOATS:
        fail("infer", "datatype", "be one of " + ", ".join(FLOATS), repr(kind)[:80])
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        fail("infer", "shape", "be two whole numbers, rows and classes", repr(shape)[:80])
    if binary is not None:
        size = shape[0] * shape[1] * np.dtype(FLOATS[kind]).itemsize
        if len(binary) != size:
            fail("infer", "binary_data_size", f"be {size} for this shape and type", len(binary))
        return np.frombuffer(binary, FLOATS[kind]).reshape(shape)
    data = about.get("data")
    if not isinstance(data, list):
        fail("infer", "data", "be a list of numbers", type(data).__name__)
    rows = as_array(data, "infer", "data") if data else np.empty(0)
    if rows.size != shape[0] * shape[1]:
        fail("infer", "data", f"hold {shape[0]} times {shape[1]} numbers", rows.size)
    return rows.astype(np.float64).reshape(shape)


def outputs_wanted(outputs: Any, usual: bool) -> list[tuple[str, bool]]:
    """Return which outputs are asked for, and whether as bytes; `usual` holds for those that do not say."""
    if outputs is None:
        return [("proba", usual), ("prior", usual)]
    if not isinstance(outputs, list) or not all(isinstance(item, dict) for item in outputs):
        fail("infer", "outputs", "be a list of objects", type(outputs).__name__)
    wanted = []
    for item in outputs:
        name, own = item.get("name"), item.get("parameters") or {}
        if name not in ("proba", "prior"):
            fail("infer", "outputs", "name proba or prior", repr(name)[:80])
        wanted.append((name, bool(own.get("binary_data", usual)) if isinstance(own, dict) else usual))
    return wanted


# CloudEvents


async def post_event(hub: Hub, request: Request) -> dict[str, Any]:
    """Learn the predictions of an event once; other events are passed over."""
    body = await read_body(request)
    request.scope["app"].forwarder.put(request.headers, body)
    about, data = event_of(request.headers, body)
    request.scope["event_stream"] = about.get("inferenceservicename")  # a refusal is counted under it
    if about["type"] != RESPONSE:
        return {"taken": False, "reason": f"Only events of type {RESPONSE} are learned."}
    name, cursor = stream_and_cursor(hub, about)
    if len(about["id"]) > 200:
        fail("cloudevents", "id", "have at most 200 characters", len(about["id"]))
    post = Post(predictions(data, hub.get(name)), correct=False, event=about["id"], cursor=cursor)
    learned = await hub.posts.samples(name, post)
    return {"taken": not learned.repeated, "repeated": learned.repeated, "n": learned.n}


def event_of(headers: Any, body: bytes) -> tuple[dict[str, str], Any]:
    """Return the attributes and the data of an event, in binary or structured form."""
    if content_type(headers.get("content-type")) == "application/cloudevents+json":
        whole = parse(body, "application/json", "cloudevents")
        about = {str(k).lower(): v for k, v in whole.items() if isinstance(v, str)}
        data: Any = whole.get("data")
    else:
        about = {name[3:].lower(): value for name, value in headers.items() if name.lower().startswith("ce-")}
        data = parse_json(body, "cloudevents") if about.get("type") != REQUEST else None
    if about.get("specversion") != "1.0":
        fail("cloudevents", "specversion", "be 1.0", repr(about.get("specversion"))[:80])
    for name in ("id", "type", "source"):
        if not about.get(name):
            fail("cloudevents", name, "be given", "nothing")
    return about, data


def predictions(data: Any, served: ServedStream) -> Any:
    """Return the rows that a model server has answered with, in its v1 or its v2 form."""
    if isinstance(data, dict) and "predictions" in data:
        return data["predictions"]
    if isinstance(data, dict) and isinstance(data.get("outputs"), list):
        fits = [x for x in data["outputs"] if isinstance(x, dict) and x.get("datatype") in tuple(FLOATS)
                and isinstance(x.get("shape"), list) and x["shape"][1:] == [served.n_classes]]  # fmt: skip
        if len(fits) == 1:
            return tensor(fits[0], None)
        fail("cloudevents", "outputs", f"hold one tensor of {served.n_classes} columns", f"{len(fits)} of them")
    return fail("cloudevents", "data", "have `predictions` or `outputs`", "neither")


def stream_and_cursor(hub: Hub, about: dict[str, str]) -> tuple[str, tuple[str, str] | None]:
    """Return the stream of an event: `name.namespace` if there is one, else `name` with the namespace to remember.

    Two services of the same name in two namespaces are two models, so `name` learns those of one namespace only.
    """
    name, namespace = about.get("inferenceservicename"), about.get("namespace", "")
    if not name:
        fail("cloudevents", "inferenceservicename", "name the stream", "nothing")
    full = f"{name}.{namespace}"
    if namespace and (full in hub.streams or full in hub.unreadable):
        return full, None
    owner = hub.get(name).receipts.cursors.get(NAMESPACE, namespace)
    if owner != namespace:
        raise Conflict(f"The stream {name!r} learns the service of the namespace {owner!r}. Make a stream {full!r} for"
                       f" the one of the namespace {namespace!r}.")  # fmt: skip
    return name, (NAMESPACE, namespace)
