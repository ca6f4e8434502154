"""What model servers already speak: the Open Inference Protocol v2, and CloudEvents of KServe's payload logger."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
from starlette.responses import Response

from reprior._check import as_array, fail
from reprior._types import Matrix
from reprior.service.errors import Conflict
from reprior.service.hub import Hub
from reprior.service.outgoing import check_target, post
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.served import ServedStream
from reprior.service.wire import answer, content_type, json_bytes, parse, parse_json

log = logging.getLogger("reprior.service")
FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
LENGTH = "inference-header-content-length"
RESPONSE = "org.kubeflow.serving.inference.response"
REQUEST = "org.kubeflow.serving.inference.request"
NAMESPACE = "cloudevents:namespace"  # among a stream's cursors: the namespace that its events come from
WAITING = 1_000  # events that may wait to be forwarded


# Open Inference Protocol v2


def model(served: ServedStream) -> dict[str, Any]:
    """Return the metadata of a stream as of a model."""
    shape = [-1, served.n_classes]
    return {
        "name": served.name, "versions": ["1"], "platform": "reprior",
        "inputs": [{"name": "proba", "datatype": "FP32", "shape": shape}],
        "outputs": [{"name": "proba", "datatype": "FP32", "shape": shape},
                    {"name": "prior", "datatype": "FP64", "shape": [served.n_classes]}],
    }  # fmt: skip


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


def split(body: bytes, length: str | None) -> tuple[dict[str, Any], bytes]:
    """Return the JSON head of a body and the bytes behind it."""
    if length is None:
        length = str(len(body))
    if not length.isdigit() or int(length) > len(body):
        fail("infer", "Inference-Header-Content-Length", "be the length of the JSON part", repr(length)[:80])
    return parse(body[: int(length)], "application/json", "infer"), body[int(length) :]


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


async def infer(hub: Hub, name: str, body: bytes, length: str | None) -> Response:
    """Learn the rows of a request and answer with them corrected, as the protocol wants it."""
    served = hub.get(name)
    head, rest = split(body, length)
    rows = input_rows(head.get("inputs"), rest, served.n_classes)
    parameters = head.get("parameters") or {}
    if not isinstance(parameters, dict):
        fail("infer", "parameters", "be an object", type(parameters).__name__)
    client, seq = check_seq(parameters.get("client"), parameters.get("seq"))
    wanted = outputs_wanted(head.get("outputs"), parameters)
    learned = await hub.posts.samples(name, Post(rows, client, seq))
    assert learned.proba is not None
    outputs: dict[str, Any] = {"proba": learned.proba, "prior": np.asarray(learned.prior)}
    kinds = {"f4": "FP32", "f8": "FP64"}
    described, behind = [], []
    for output, binary in wanted:
        values = np.ascontiguousarray(outputs[output])
        item: dict[str, Any] = {"name": output, "shape": list(values.shape), "datatype": kinds[values.dtype.str[1:]]}
        if binary:
            behind.append(values.tobytes())
            item["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            item["data"] = values.ravel()
        described.append(item)
    reply: dict[str, Any] = {"model_name": name, "model_version": "1", "outputs": described}
    if isinstance(head.get("id"), str):
        reply["id"] = head["id"]
    reply["parameters"] = {"n": learned.n, "repeated": learned.repeated}
    if not behind:
        return answer(reply)
    text = json_bytes(reply)
    return Response(text + b"".join(behind), headers={LENGTH: str(len(text))}, media_type="application/octet-stream")


def outputs_wanted(outputs: Any, parameters: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return which outputs are asked for, and whether as bytes."""
    usual = parameters.get("binary_data_output") is True
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


def stream_of(hub: Hub, about: dict[str, str]) -> tuple[str, tuple[str, str] | None]:
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


async def take_event(hub: Hub, headers: Any, body: bytes, scope: Any) -> dict[str, Any]:
    """Learn the predictions of an event once; other events are passed over."""
    about, data = event_of(headers, body)
    scope["event_stream"] = about.get("inferenceservicename")  # a refusal is counted under it
    if about["type"] != RESPONSE:
        return {"taken": False, "reason": f"Only events of type {RESPONSE} are learned."}
    name, cursor = stream_of(hub, about)
    served = hub.get(name)
    if len(about["id"]) > 200:
        fail("cloudevents", "id", "have at most 200 characters", len(about["id"]))
    post = Post(predictions(data, served), correct=False, event=about["id"], cursor=cursor)
    learned = await hub.posts.samples(name, post)
    return {"taken": not learned.repeated, "repeated": learned.repeated, "n": learned.n}


class Forwarder:
    """Sends events on to a second sink, as they came, in order; those it cannot take in time are counted as dropped."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.queue = hub, asyncio.Queue[tuple[bytes, dict[str, str]]](WAITING)

    def put(self, headers: Any, body: bytes) -> None:
        if self.hub.settings.forward is None:
            return
        kept = {k: v for k, v in headers.items() if k.lower().startswith("ce-") or k.lower() == "content-type"}
        try:
            self.queue.put_nowait((body, kept))
        except asyncio.QueueFull:
            self.hub.counters.forward_dropped += 1

    async def run(self) -> None:
        url = self.hub.settings.forward
        target = None if url is None else check_target(url, "--forward", private=True)
        while target is not None:
            body, headers = await self.queue.get()
            if problem := await asyncio.to_thread(post, target, body, headers):
                self.hub.counters.forward_dropped += 1
                log.warning("an event was not taken by the second sink: %s", problem)
