"""The playground in headless Chromium, as a visitor uses it; run as a program, it takes the README's picture.

In: a server's address. Out: what the page shows, what its console said, what it loaded.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from support.serving import serving

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")
DESKTOP, PHONE = (1280, 800), (390, 844)
PICTURED = "Write the lyrics of a short song about a river, with a refrain."


@dataclass(slots=True)
class Page:
    """The page in a browser."""

    driver: Chrome
    url: str

    def load(self, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Opens the page afresh in a window of this size, in pixels."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(self.url)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """An element's text as it stands in the document."""
        return str(self.one(selector).get_property("textContent"))

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def keys(self, *keys: str, holding: str | None = None) -> None:
        """Types, wherever the focus is."""
        typed = ActionChains(self.driver)
        if holding is not None:
            typed = typed.key_down(holding)
        typed = typed.send_keys(*keys)
        (typed if holding is None else typed.key_up(holding)).perform()

    @property
    def focused(self) -> str:
        """The id of the focused element, or its classes."""
        return str(self.script("const e = document.activeElement; return e.id || e.className"))

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Waits until a JavaScript expression is true."""
        WebDriverWait(self.driver, seconds, 0.02).until(lambda _: self.script(f"return {condition}"), condition)

    def set(self, **fields: str) -> None:
        """Fills in the settings."""
        self.one("#open-settings").click()
        for name, value in fields.items():
            self.one(f"#{name}").clear()
            self.one(f"#{name}").send_keys(value)
        self.one("#settings button").click()

    def ask(self, text: str) -> None:
        """Sends a message."""
        self.one("#message").send_keys(text)
        self.one("#send").click()

    def wait_answered(self) -> None:
        self.wait("document.getElementById('stop').hidden", 60)

    def screenshot(self, path: Path) -> None:
        """Takes a picture of the window."""
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """The addresses the page asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@contextlib.contextmanager
def browsing(url: str) -> Iterator[Page]:
    """Runs a browser while the block runs; skips the test where there is none."""
    browser, driver = (next(filter(None, map(shutil.which, names)), None) for names in (BROWSERS, DRIVERS))
    if browser is None or driver is None:
        pytest.skip("no Chromium with chromedriver here (on Debian: apt install chromium chromium-driver)")
    with tempfile.TemporaryDirectory(prefix="draftgraph-browser") as profile:
        options = ChromeOptions()
        options.binary_location = browser
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars", "lang=en",
                     f"user-data-dir={profile}", "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):  # fmt: skip
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        chrome = Chrome(options=options, service=ChromeService(driver))
        try:
            yield Page(chrome, url)
        finally:
            chrome.quit()


def take_picture(page: Page, path: Path, **look: Any) -> None:
    """Asks, opens the graph at its most telling step, and takes a picture of it."""
    page.load(**look)
    page.set(max_tokens="90")
    page.ask(PICTURED)
    page.wait_answered()
    page.one(".open-graph").click()
    page.wait("document.querySelectorAll('#canvas .pill').length > 1")
    page.wait("document.fonts.status === 'loaded'")
    page.screenshot(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    picture = parser.parse_args().picture
    with serving("smollm2-135m", threads=2, budget="auto") as running, browsing(running.url) as page:
        take_picture(page, picture)


if __name__ == "__main__":
    main()
