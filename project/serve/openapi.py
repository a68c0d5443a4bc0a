"""What the server's paths take and give, as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0)."""

from typing import Any

import project

_PROBLEM = "#/components/schemas/Problem"
_REFUSALS = {
    "400": "No image, one that is damaged, cut off or empty, or a body that cannot be read.",
    "408": "The body has not arrived in time.",
    "413": "The body, an image or the number of images is too large.",
    "415": "A Content-Type that is not understood.",
    "422": "JSON whose fields are wrong; `pointer` says which.",
    "500": "The model failed; the server's log has more.",
    "503": "Too many requests wait, or the server starts or ends. `Retry-After` says when to try.",
    "504": "No prediction in time.",
}
_TOP: dict[str, Any] = {
    "class": {"type": "string"},
    "label": {"type": "integer", "minimum": 0},
    "probability": {"type": "number", "minimum": 0, "maximum": 1},
}


def document(body_bytes: int) -> dict[str, Any]:
    """Return the document.

    Args:
        body_bytes: Largest body of a request.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Image classification",
            "version": project.__version__,
            "description": "Send images, get classes with their probabilities. "
            f"A body has at most {body_bytes / 2**20:g} MB.",
        },
        "paths": {
            "/predict": {"post": _predict()},
            "/health": {"get": _get("Whether requests may be sent here.", refusal="503")},
            "/info": {"get": _get("Which model this is, its classes, and limits.", refusal="503")},
            "/metrics": {"get": _get("Figures for Prometheus.", kind="text/plain")},
            "/openapi.json": {"get": _get("This document.")},
            "/docs": {"get": _get("This document to read.", kind="text/html")},
            "/": {"get": _get("A page to try it with images.", kind="text/html")},
        },
        "components": {"schemas": _schemas()},
    }


def _predict() -> dict[str, Any]:
    image = {"schema": {"type": "string", "format": "binary"}}
    form = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
    answer = {"application/json": {"schema": {"$ref": "#/components/schemas/Predictions"}}}
    return {
        "summary": "Classify images.",
        "parameters": [
            {
                "name": "top_k",
                "in": "query",
                "description": "How many classes to name, best first; by default at most 5.",
                "schema": {"type": "integer", "minimum": 1},
            }
        ],
        "requestBody": {
            "required": True,
            "description": "One image, a form with one or more, or JSON.",
            "content": {
                "image/*": image,
                "application/octet-stream": image,
                "multipart/form-data": {"schema": form},
                "application/json": {"schema": {"$ref": "#/components/schemas/Images"}},
            },
        },
        "responses": {
            "200": {"description": "One prediction for each image, in order.", "content": answer},
            **{status: _refusal(text) for status, text in _REFUSALS.items()},
        },
    }


def _get(text: str, kind: str = "application/json", refusal: str = "") -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": text, "content": {kind: {}}}}
    if refusal:
        answers[refusal] = _refusal("The server starts or ends.")
    return {"summary": text, "responses": answers}


def _refusal(text: str) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": _PROBLEM}}}
    return {"description": text, "content": content}


def _schemas() -> dict[str, Any]:
    base64 = {"type": "string", "description": "An image file in base64."}
    pixels = {
        "type": "array",
        "items": {"type": "array"},
        "description": "Rows of pixels from 0 to 255: H x W for grey, H x W x 3 for colour.",
    }
    top = {"type": "object", "required": list(_TOP), "properties": _TOP}
    one = {
        "type": "object",
        "required": ["name", *_TOP, "top_k"],
        "properties": {
            "name": {"type": ["string", "null"], "description": "The file's name in a form."},
            **_TOP,
            "top_k": {"type": "array", "items": top},
        },
    }
    return {
        "Images": {
            "type": "object",
            "required": ["images"],
            "properties": {
                "images": {"type": "array", "minItems": 1, "items": {"anyOf": [base64, pixels]}}
            },
        },
        "Predictions": {
            "type": "object",
            "required": ["predictions"],
            "properties": {"predictions": {"type": "array", "items": one}},
        },
        "Problem": {
            "type": "object",
            "description": "RFC 9457.",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
                "pointer": {"type": "string", "description": "RFC 6901."},
                "errors": {"type": "array", "description": "One entry for each bad image."},
            },
        },
    }
