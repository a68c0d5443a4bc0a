"""The page in a real browser, driven through its DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

aiohttp = pytest.importorskip("aiohttp")

from serve_process import Server, encoded  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--remote-debugging-port=0", "--window-size=800,900"),
]


class Page:
    """A page of the browser.

    Args:
        socket: To it.
    """

    def __init__(self, socket: Any) -> None:
        self.socket, self.numbers = socket, itertools.count()
        self.requested: list[str] = []
        self.errors: list[str] = []

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("method") == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(str(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def run(self, script: str) -> Any:
        found = await self.do("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        end = time.monotonic() + 30
        while not (found := await self.run(script)):
            assert time.monotonic() < end, await self.run("document.body.innerText")
            await asyncio.sleep(0.05)
        return found


@contextlib.asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    process = await asyncio.create_subprocess_exec(
        *(str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        file, end = folder / "DevToolsActivePort", time.monotonic() + 60
        while not file.exists() or not file.read_text().strip():
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{file.read_text().split()[0]}/json"
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                pages = await answer.json(content_type=None)
            address = next(p for p in pages if p["type"] == "page")["webSocketDebuggerUrl"]
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
                    await page.do(f"{domain}.enable")
                yield page
                await page.do("Browser.close")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def picture(folder: Path, name: str = "seven.png") -> Path:
    file = folder / name
    file.write_bytes(encoded((np.arange(64).reshape(8, 8) * 4).astype(np.uint8)))
    return file


# What a drop is to a page, whose data a program must not read from a disk.
DROP = """
const bytes = Uint8Array.from(atob("{data}"), letter => letter.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], "dropped.png", {{ type: "image/png" }}));
transfer.items.add(new File(["no image"], "bad.png", {{ type: "image/png" }}));
document.getElementById("drop").dispatchEvent(
  new DragEvent("drop", {{ dataTransfer: transfer, bubbles: true, cancelable: true }}));
"""


def test_an_image_that_is_chosen_or_dropped_gets_its_classes(
    digits_server: Server, tmp_path: Path
) -> None:
    file = picture(tmp_path)
    expected = digits_server.ask("/predict", file.read_bytes()).json["predictions"][0]

    async def steps() -> None:
        async with browser(tmp_path / "profile") as page:
            await page.do("Page.navigate", url=f"{digits_server.url}/")
            await page.until("document.getElementById('about')?.textContent.includes('10 classes')")
            root = (await page.do("DOM.getDocument"))["root"]["nodeId"]
            node = await page.do("DOM.querySelector", nodeId=root, selector="#file")
            await page.do("DOM.setFileInputFiles", files=[str(file)], nodeId=node["nodeId"])
            assert await page.until("document.querySelector('h2')?.textContent")
            assert await page.run("document.querySelector('h2').textContent") == expected["class"]
            rows = await page.run("document.querySelectorAll('.row').length")
            assert rows == len(expected["top_k"])
            width = await page.run("parseFloat(document.querySelector('.bar').style.width)")
            assert width == pytest.approx(100 * expected["probability"], abs=0.01)

            data = base64.b64encode(file.read_bytes()).decode()
            await page.run(DROP.format(data=data))
            said = await page.until("document.querySelector('.error')?.textContent")
            assert said.startswith("bad.png: it is damaged")
            assert await page.run("document.querySelectorAll('h2').length") == 2
            shot = await page.do("Page.captureScreenshot")
            (tmp_path / "page.png").write_bytes(base64.b64decode(shot["data"]))
            mine = (digits_server.url, "data:", "blob:")
            assert [url for url in page.requested if not url.startswith(mine)] == []
            assert [error for error in page.errors if "400" not in error] == []

    asyncio.run(steps())


def test_the_page_of_the_api_shows_every_path(digits_server: Server, tmp_path: Path) -> None:
    async def steps() -> None:
        async with browser(tmp_path / "profile") as page:
            await page.do("Page.navigate", url=f"{digits_server.url}/docs")
            text = await page.until("document.querySelector('section') && document.body.innerText")
            for path in ("/predict", "/health", "/info", "/metrics", "?top_k=", "413"):
                assert path in text
            shot = await page.do("Page.captureScreenshot")
            (tmp_path / "docs.png").write_bytes(base64.b64decode(shot["data"]))
            assert page.errors == []

    asyncio.run(steps())
