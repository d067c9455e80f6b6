"""A real browser: Debian's Chromium, driven by Playwright. Whatever it complains about is a failure."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from tests.debian import have

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
MILLISECONDS_MAX = 60_000
SLOW = "htmx:(timeout|afterRequest)"
"""What is said of a poll that took too long, as it may on a machine with much to do; the next one is asked all the same."""

PAGES = (
    "/",
    "/topics",
    "/topics/orders",
    "/groups",
    "/groups/billing",
    "/keys",
    "/transactions",
    "/access",
    "/connections",
    "/cluster",
    "/schemas",
    "/spark",
    "/settings",
)
"""Of a node that is filled, all that a person can go to."""


@contextmanager
def chromium() -> Iterator[Browser]:
    have("chromium", "chromium")
    path = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, forgiven: str = ""
) -> Iterator[Page]:
    """A page of its own context: no cookie, no choice of before. What its scripts or its policy complain of is raised."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="en-GB"
    )
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not re.search(f"{SLOW}|{forgiven}" if forgiven else SLOW, message.text):
            complaints.append(message.text)

    try:
        page = context.new_page()
        page.set_default_timeout(MILLISECONDS_MAX)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        yield page
        assert not complaints, complaints
    finally:
        context.close()


def confirm(page: Page, words: str, done: str) -> None:
    """Expect the plan to contain `words`, confirm it, and expect the result to contain `done`."""
    expect(page.locator("#confirm-words")).to_contain_text(words)
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator("#acted.done")).to_contain_text(done)


def close(page: Page) -> None:
    """Close the dialog and wait for the page that follows, so that the next step does not use the old page."""
    button = page.locator("#confirm").get_by_role("button", name="Close")
    if page.locator("#acted.done").count():
        with page.expect_navigation():
            button.click()
    else:
        button.click()
    expect(page.locator("#confirm")).to_be_hidden()
