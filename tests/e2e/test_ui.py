"""``elasticflow ui``: who is let in, what it shows of real runs, and what a browser makes of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import selenium.webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.support.ui import WebDriverWait

from elasticflow.run.folder import EXIT_CODES
from tests.cli.test_history import ended

from .conftest import PATIENCE_S, Run
from .processes import CLI

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--checkpoint-every", 5)
STEER = {"X-ElasticFlow": "steer"}


class Page:
    """``elasticflow ui`` of a folder, and one who has its address."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [*CLI, "ui", str(folder), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.origin, _, query = self.address.partition("/?")
        port, token = urllib.parse.urlsplit(self.address).port, query.removeprefix("token=")
        self.headers = {"Cookie": f"elasticflow-{port}={token}"}

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.origin + path, data, {**self.headers, **headers})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answered:
                return answered.status, answered.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def told(self, path: str) -> Any:
        code, body = self.ask(path)
        assert code == 200, body
        return json.loads(body)


@pytest.fixture
def runs(start: Callable[..., Run]) -> tuple[str, Run]:
    """The digest of a run that is over, and one that is held at step 20."""
    digest = start("small_torch.py", *OPTIONS, name="over").digest()
    run = start("small_torch.py", *OPTIONS, name="held", shut=["step 20"])
    run.held_at("step 20")
    return digest, run


def test_who_has_the_address_is_let_in_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with Page(tmp_path / "runs") as page:
        cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with cookies.open(page.address) as answered:
            assert answered.url == f"{page.origin}/" and b"<main" in answered.read()
        for path in ("/", "/app.js", "/api/runs", "/api/run/x", "/api/compare", "/?token=", "/?token=%C3%A9"):
            assert page.ask(path, Cookie="")[0] == 403
            assert page.ask(path, Cookie=page.headers["Cookie"][:-1])[0] == 403
        assert page.told("/api/runs") == {
            "title": f"{tmp_path}/runs",
            "steers": False,
            "runs": [],
            "service": None,
        }


def test_what_it_shows_of_runs_and_that_nobody_steers_them(runs: tuple[str, Run], tmp_path: Path) -> None:
    digest, run = runs
    with Page(tmp_path) as page:
        told = {each["name"]: each for each in page.told("/api/runs")["runs"]}
        assert told["over"]["digest"] == digest and told["over"]["state"] == "finished"
        assert told["held"]["state"] in ("running", "unknown")  # a busy master may take longer than is waited
        assert page.told("/api/run/over")["state"] == "finished"
        for name in ("..", "%2e%2e%2fover", str(tmp_path / "over"), "none", ""):
            assert page.ask(f"/api/run/{name}")[0] == 404
        for what in ("stop", "scale"):
            code, text = page.ask(f"/api/run/held/{what}", b'{"workers": 2}', **STEER)
            assert code == 403 and b"only shows" in text
        with urllib.request.urlopen(
            urllib.request.Request(f"{page.origin}/api/run/held/events", headers=page.headers)
        ) as events:
            pictures = (json.loads(line[6:]) for line in events if line.startswith(b"data: {"))
            assert next(pictures)["state"] == "running"
            run.open("step 20")
            last = [picture for picture in pictures if picture][-1]
            assert last["state"] == "finished" and run.digest() == digest
        comparison = page.told("/api/compare?run=over&run=held")
        assert comparison["same_digest"] is True and comparison["settings"] == {}


def test_who_may_steer(runs: tuple[str, Run], tmp_path: Path) -> None:
    _, run = runs
    with Page(tmp_path, "--steer") as page:
        assert page.ask("/api/run/held/scale", b'{"workers": 2}')[0] == 403  # as another site could ask for
        for body in (b"", b"{", b"[]", b'{"workers": "2"}', b'{"workers": %d}' % 10**30):
            assert page.ask("/api/run/held/scale", body, **STEER)[0] == 400
        code, text = page.ask("/api/run/held/scale", b'{"workers": 0}', **STEER)
        assert code == 503 and b"workers" in text
        assert page.ask("/api/run/held/scale", b'{"workers": 2}', **STEER)[0] == 200
        assert run.wait_until(lambda status: status.target_workers == 2)
        with ThreadPoolExecutor() as beside:  # the answer comes once it has stopped
            asked = beside.submit(page.ask, "/api/run/held/stop", b"", **STEER)
            run.wait_until(lambda status: status.state == "finishing")
            run.open("step 20")
            assert asked.result()[0] == 200
    assert run.wait()[0] == EXIT_CODES["stopped"]


def test_in_a_browser(runs: tuple[str, Run], tmp_path: Path) -> None:
    digest, run = runs
    with Page(tmp_path, "--steer") as page, browser() as driver:
        driver.get(page.address)
        # The page may draw itself anew between any two words.
        wait = WebDriverWait(driver, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException])
        for name in ("over", "held"):
            wait.until(lambda d, name=name: chosen(d.find_element("id", f"choose-{name}")))
        wait.until(lambda d: clicked(d.find_element("id", "compare")))
        wait.until(lambda d: "held" in d.title and len(d.find_elements("css selector", "svg path.line")) >= 3)
        driver.get(f"{page.origin}/#/run/held")
        wait.until(lambda d: filled_in(d.find_element("id", "workers"), "2"))
        wait.until(lambda d: clicked(d.find_element("id", "scale")))
        assert run.wait_until(lambda status: status.target_workers == 2)
        wait.until(lambda d: "2 asked for" in d.find_element("id", "table-sizes").text)
        run.open("step 20")
        wait.until(lambda d: "held: finished" in d.find_element("tag name", "h1").text)
        driver.get(f"{page.origin}/#/")
        wait.until(lambda d: d.find_element("tag name", "main").text.count(digest[:12]) == 2)
        assert driver.get_log("browser") == []  # no error, and nothing that the page's policy forbids


def test_a_browser_is_fooled_by_no_name_and_shows_what_can_be_read(tmp_path: Path) -> None:
    script = "<img src=x onerror=document.title='fooled'>"
    for name in (script, "\u202egnp.exe", "x" * 200, "damaged"):
        ended(tmp_path / name)
    (tmp_path / "damaged" / "report.json").write_bytes(b"{")
    with Page(tmp_path) as page, browser() as driver:
        driver.get(page.address)
        wait = WebDriverWait(driver, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException])
        wait.until(lambda d: "4 runs" in d.find_element("id", "main").text)
        names = driver.execute_script(
            "return [...document.querySelectorAll('a[id^=run-]')].map(a => a.innerText)"
        )
        assert sorted(names) == sorted((script, "\\u202egnp.exe", "x" * 200, "damaged"))
        width = f"return document.getElementById('run-{'x' * 200}').closest('td').offsetWidth"
        assert driver.execute_script(width) < 600, "a long name leaves room for what is beside it"
        driver.get(f"{page.origin}/#/compare/{'x' * 200},damaged")
        wait.until(lambda d: "At a glance" in d.find_element("id", "main").text)
        wait.until(lambda d: "is damaged" in d.find_element("id", "said").text)
        driver.get(f"{page.origin}/#/run/%")
        wait.until(lambda d: "no such run" in d.find_element("id", "main").text)
        assert "fooled" not in driver.title


def clicked(element: Any) -> bool:
    element.click()
    return True


def chosen(element: Any) -> bool:
    if not element.is_selected():
        element.click()
    return bool(element.is_selected())


def filled_in(element: Any, text: str) -> bool:
    element.clear()
    element.send_keys(text)
    return bool(element.get_attribute("value") == text)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with its chromedriver here")
    options = selenium.webdriver.ChromeOptions()
    options.binary_location = chromium
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = selenium.webdriver.Chrome(options, selenium.webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()
