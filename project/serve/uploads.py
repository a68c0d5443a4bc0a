"""From the body of a request to the files of images in it, within limits."""

import asyncio
import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError, HttpVersion11

from project.serve.problems import Problem

_HOW = "curl sends a file with -F image=@FILE"
_TYPES = "an image (image/*, application/octet-stream), multipart/form-data, application/json"
# What RFC 9110 lets a 415 say; a star stands for every kind of image.
_ACCEPTED = {
    "Accept-Post": "image/*, application/octet-stream, multipart/form-data, application/json"
}


class Upload(NamedTuple):
    """An image as a file.

    Args:
        data: Its bytes.
        name: What the client calls it; may be empty.
    """

    data: bytes
    name: str = ""


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Args:
        body_bytes: Largest body.
        images: Most images.
    """

    body_bytes: int
    images: int

    def too_large(self) -> Problem:
        """Refuse a body; the rest of it is not read."""
        allowed = f"{self.body_bytes / 2**20:g} MB"
        return Problem(413, f"the body has more than the {allowed} allowed (--max_body_mb)")


async def read_uploads(request: web.Request, limits: Limits) -> list[Upload]:
    """Read the images of a request.

    Args:
        request: Its body is one image, a form with files, or JSON with ``images``.
        limits: What is refused before all of it is read.

    Raises:
        Problem: If there are none, or something about them is not allowed.
    """
    kind = request.content_type
    if (request.content_length or 0) > limits.body_bytes:
        raise limits.too_large()
    is_file = kind.startswith("image/") or kind == "application/octet-stream"
    if not is_file and kind not in ("multipart/form-data", "application/json"):
        hint = f" ({_HOW})" if "urlencoded" in kind else ""
        raise Problem(415, f"{kind} is not understood{hint}; send {_TYPES}", _ACCEPTED)
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.version >= HttpVersion11:  # RFC 9110, 10.1.1
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if kind == "multipart/form-data":
        found = await _parts(request, limits)
    else:
        body = await _body(request, limits)
        # Off the event loop: ten megabytes of JSON take some tenths of a second.
        found = [Upload(body)] if is_file else await asyncio.to_thread(_of_json, body)
    if not found or not any(upload.data for upload in found):
        raise Problem(400, f"the request has no image: it is empty; {_HOW}")
    if len(found) > limits.images:
        raise Problem(413, f"{len(found)} images, more than the {limits.images} allowed (--queue)")
    return found


async def _body(request: web.Request, limits: Limits) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():  # unpacked, if it was sent with gzip
        body += chunk
        if len(body) > limits.body_bytes:
            raise limits.too_large()
    return bytes(body)


async def _parts(request: web.Request, limits: Limits) -> list[Upload]:
    """Read a form; fields without a file name count too."""
    found, left = [], limits.body_bytes
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise Problem(400, "a part of the form is a form itself")
            data = bytearray()
            while chunk := await part.read_chunk():
                data += chunk
                if len(data) > left:
                    raise limits.too_large()
            left -= len(data)
            if data and not part.filename and data[:200].decode(errors="replace").isprintable():
                name = (part.name or "")[:40]
                raise Problem(400, f"the form's field {name!r} is text, and no file; {_HOW}")
            found.append(Upload(bytes(data), part.filename or ""))
            if len(found) > limits.images:
                break
    except (ValueError, AssertionError, HttpProcessingError) as error:  # for a form cut off
        reason = str(error) or type(error).__name__
        raise Problem(400, f"the form cannot be read: {reason}; {_HOW}") from None
    return found


def _of_json(body: bytes) -> list[Upload]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the body is no JSON: {error}") from None
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not images:
        raise _unprocessable("", 'expected {"images": [...]} with at least one image')
    return [_of_json_image(image, f"/images/{index}") for index, image in enumerate(images)]


def _of_json_image(image: Any, pointer: str) -> Upload:  # noqa: ANN401
    if isinstance(image, list):
        return Upload(_portable_pixmap(image, pointer))
    if not isinstance(image, str):
        raise _unprocessable(pointer, "expected a file in base64, or rows of pixels")
    if image.startswith("data:"):  # as a browser's FileReader gives it
        image = image.partition(",")[2]
    try:
        return Upload(base64.b64decode("".join(image.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise _unprocessable(pointer, f"not base64: {error}") from None


def _portable_pixmap(rows: list[Any], pointer: str) -> bytes:
    """Write pixels ``(H, W)`` or ``(H, W, 1 or 3)`` as a PPM file, so that all are files."""
    try:
        pixels = np.array(rows)
    except ValueError:
        raise _unprocessable(pointer, "its rows are not equally long") from None
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    colour = pixels.ndim == 3 and pixels.shape[2] == 3
    if pixels.size == 0 or not (pixels.ndim == 2 or colour):
        shape = " x ".join(map(str, pixels.shape))
        raise _unprocessable(pointer, f"expected H x W or H x W x 3 pixels, got {shape}")
    if pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
        raise _unprocessable(pointer, "pixels are whole numbers from 0 to 255")
    height, width = pixels.shape[:2]
    # Binary formats P5 (grey) and P6 (colour): https://netpbm.sourceforge.net/doc/ppm.html
    head = f"P{6 if colour else 5} {width} {height} 255\n"
    return head.encode() + pixels.astype(np.uint8).tobytes()


def _unprocessable(pointer: str, detail: str) -> Problem:
    """Say what is wrong with a field, and by RFC 6901 which one it is."""
    return Problem(422, f"{pointer or 'body'}: {detail}", pointer=pointer)
