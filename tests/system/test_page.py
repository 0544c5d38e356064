"""The live page in a real Chromium: every view, a real run as it goes on, a login, a thousand devices, a keyboard."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.bench import Bench
from fixtures.browser import chromium
from fixtures.page_runs import HOSTILE, LAYERS, accept, activity, page, present, write_live, write_run
from fixtures.secured import free_ports
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from sparsyedge.coordinator.authority.authority import Authority, Settings
from sparsyedge.coordinator.authority.page_access import make_page_token
from sparsyedge.coordinator.record.store import Store
from sparsyedge.edge.model.artifacts import Artifacts

pytestmark = pytest.mark.heavy

LIMIT_S = 300.0
VIEWS = ("", "devices", "devices/pi-000", "layers", "log")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def wait_for(driver: Chrome, condition: str, what: str = "") -> None:
    """Wait until a JavaScript expression is true."""
    until_s = time.monotonic() + LIMIT_S
    while not driver.execute_script(f"return Boolean({condition})"):
        if time.monotonic() > until_s:
            body = driver.find_element(By.TAG_NAME, "body").text
            pytest.fail(f"{what or condition} did not happen within {LIMIT_S:g} s; the page shows: {body[:2000]}")
        time.sleep(0.05)


def open_view(driver: Chrome, url: str, view: str) -> None:
    """Load the page anew at a view, and wait for its first events."""
    driver.get("about:blank")
    driver.get(f"{url}/#/{view}")
    wait_for(driver, "document.getElementById('run-name').textContent === 'digits'")


def text(driver: Chrome, selector: str) -> str:
    return driver.find_element(By.CSS_SELECTOR, selector).text


def count(driver: Chrome, selector: str) -> int:
    return len(driver.find_elements(By.CSS_SELECTOR, selector))


def complaints(driver: Chrome) -> list[str]:
    """What the browser's console complains of, a refused script or a broken policy too."""
    entries: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]


def keep_picture(driver: Chrome, name: str) -> None:
    """Keep a screenshot for people, if they say where."""
    if folder := os.environ.get("SPARSYEDGE_SCREENSHOTS"):
        driver.save_screenshot(str(Path(folder) / f"{name}.png"))


def test_every_view_shows_the_run_and_takes_what_devices_say_as_text(browser: Chrome, run_dir: Path) -> None:
    (run_dir / "model.onnx").write_bytes(b"model")
    with page(run_dir) as (_, url):
        open_view(browser, url, "")
        assert text(browser, "#sentence") == "round 5 waits for 3 of 6 devices: pi-003, pi-004, pi-005"
        wait_for(browser, "document.querySelectorAll('#charts canvas').length === 4")
        assert "75.9 %" in text(browser, "#facts")
        assert text(browser, "#downloads") == "↓ model.onnx"
        assert text(browser, "#text-updates") == "3 of 6"

        open_view(browser, url, "devices")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 6")
        assert HOSTILE in text(browser, "#device-rows")
        assert "below 30 %" in text(browser, "#device-rows")

        open_view(browser, url, "devices/pi-000")
        wait_for(browser, "document.querySelectorAll('#history-rows tr').length === 5")
        wait_for(browser, "document.querySelectorAll('#device-charts canvas').length === 4")
        assert HOSTILE in text(browser, "#refusal-rows")

        open_view(browser, url, "layers")
        wait_for(browser, f"document.querySelectorAll('#layer-rows tr').length === {len(LAYERS)}")
        assert "stem.weight" in text(browser, "#layer-rows")

        open_view(browser, url, "log")
        wait_for(browser, "document.querySelectorAll('#log div').length === 5")
        assert HOSTILE in text(browser, "#log .warning")
        assert browser.execute_script("return document.images.length") == 0
        assert "taken" not in browser.title
        assert complaints(browser) == []


def test_evaluations_on_devices_and_what_devices_say_of_themselves_are_shown(browser: Chrome, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", evaluates=True)
    with page(run_dir) as (_, url):
        open_view(browser, url, "")
        wait_for(browser, "document.querySelectorAll('#charts canvas').length === 4")
        caption = text(browser, "#charts figcaption")
        assert caption == "Accuracy test set on devices worst tenth personalised\n75.9 % · 67.5 % · 87.5 %"
        assert "personalised\n87.5 %\nworst tenth 85.0 %, 6 devices" in text(browser, "#facts")
        browser.find_element(By.CSS_SELECTOR, "#round-details summary").click()
        wait_for(browser, "document.querySelectorAll('#round-head th').length === 14")
        assert text(browser, "#round-rows tr").endswith("67.5 % 65.0 % 87.5 % 85.0 %")

        open_view(browser, url, "devices")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 6")
        assert text(browser, "#device-rows .c-given") == "70.0 %"
        assert text(browser, "#device-rows .c-own") == "90.0 %"

        open_view(browser, url, "devices/pi-000")
        wait_for(browser, "document.querySelectorAll('#device-charts canvas').length === 5")
        assert text(browser, "#device-settings") == "Python 3.11.2, aarch64, 4 threads, trains below 80 C"
        assert text(browser, "#device-notes") == f"data, round 1: 12 new, 1 broken; {HOSTILE}.png"
        facts = text(browser, "#device-facts")
        assert "predicts with\nround 3\n4.25 ms a sample" in facts
        assert f"upgrade: refused, expired {HOSTILE}" in facts
        assert "taken" not in browser.title
        assert not [complaint for complaint in complaints(browser) if url in complaint]


def test_a_fleet_that_does_not_evaluate_has_no_columns_for_scores(browser: Chrome, run_dir: Path) -> None:
    with page(run_dir) as (_, url):
        open_view(browser, url, "devices")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 6")
        assert not browser.find_element(By.CSS_SELECTOR, "#device-head .c-given").is_displayed()
        open_view(browser, url, "devices/pi-001")
        wait_for(browser, "document.querySelectorAll('#device-charts canvas').length === 4")
        assert "own" not in text(browser, "#history-head").split()


def test_what_happens_is_on_the_screen_without_a_reload(browser: Chrome, run_dir: Path) -> None:
    with page(run_dir) as (_, url):
        open_view(browser, url, "devices")
        with closing(write_live(run_dir, devices=6, number=5, sentence="round 5 waits for pi-003")) as live:
            wait_for(browser, "document.getElementById('device-rows').textContent.includes('step 0 of 310')")
            live.note(activity("pi-003", number=5, step=250))
            live.flush(present(5, sentence="round 5 waits for pi-003 (step 250 of 310)"))
            wait_for(browser, "document.getElementById('device-rows').textContent.includes('step 250 of 310')")
            browser.execute_script("location.hash = '#/'")
            wait_for(browser, "document.getElementById('sentence').textContent.includes('step 250 of 310')")
            assert text(browser, "#until").endswith(" left until then.")
            with closing(Store.open(run_dir)) as store:
                accept(store, 5, "pi-003")
            wait_for(browser, "document.getElementById('text-updates').textContent === '4 of 6'")
            with (run_dir / "coordinator.log").open("a") as log:
                log.write("2026-11-18T12:02:00 INFO one more line\n")
            browser.execute_script("location.hash = '#/log'")
            wait_for(browser, "document.getElementById('log').textContent.includes('one more line')")


def test_a_lost_connection_is_said_in_words_and_found_again(browser: Chrome, run_dir: Path, free_port: int) -> None:
    address = ("--address", f"127.0.0.1:{free_port}")
    with page(run_dir, *address) as (_, url):
        open_view(browser, url, "")
        assert count(browser, "#connection[hidden]") == 1
    wait_for(browser, "document.getElementById('connection').textContent.includes('Connection lost')")
    assert count(browser, "#connection[hidden]") == 0
    with page(run_dir, *address):
        wait_for(browser, "document.getElementById('connection').hidden")
    complaints(browser)  # of the page that was gone, for a while


def test_a_thousand_devices_are_sorted_and_filtered(browser: Chrome, tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", devices=1000, rounds=1)
    with page(run_dir) as (_, url):
        open_view(browser, url, "devices")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 1000")
        first = "document.querySelector('#device-rows tr a').textContent"
        assert browser.execute_script(f"return {first}") == "pi-000"
        heading = browser.find_element(By.CSS_SELECTOR, "#device-head .c-id button")
        heading.click()
        assert browser.execute_script(f"return {first}") == "pi-999"
        assert text(browser, "#filter-count") == "1,000 devices"
        browser.find_element(By.ID, "filter").send_keys("pi-42")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 10")
        assert text(browser, "#filter-count") == "10 of 1,000 devices"
        browser.find_element(By.ID, "filter").send_keys(Keys.CONTROL, "a")
        browser.find_element(By.ID, "filter").send_keys("below 30 %")
        wait_for(browser, "document.querySelectorAll('#device-rows tr').length === 1")
        assert browser.execute_script(f"return {first}") == "pi-004"


def test_everything_can_be_done_with_the_keyboard_alone(browser: Chrome, run_dir: Path) -> None:
    with page(run_dir) as (_, url):
        open_view(browser, url, "")
        wait_for(browser, "document.getElementById('action-stop')")

        def press(*keys: str) -> None:
            for key in keys:
                browser.switch_to.active_element.send_keys(key)

        def focused() -> str:
            found: str = browser.execute_script("return document.activeElement.textContent.trim()")
            return found

        press(Keys.TAB)
        assert focused() == "Skip to the content"
        press(Keys.TAB, Keys.TAB)
        assert focused().startswith("Devices")
        outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        press(Keys.ENTER)
        wait_for(browser, "!document.getElementById('view-devices').hidden")
        assert browser.execute_script("return document.activeElement.id") == "main"
        browser.execute_script("document.querySelector('#device-head .c-updates button').focus()")
        press(Keys.ENTER)
        assert (
            browser.find_element(By.CSS_SELECTOR, "#device-head .c-updates").get_attribute("aria-sort") == "descending"
        )
        browser.execute_script("document.getElementById('action-stop').focus()")
        press(Keys.ENTER)
        assert focused() == "Cancel"
        press(Keys.ESCAPE)
        wait_for(browser, "!document.getElementById('confirm').open")
        with closing(Store.open(run_dir)) as store:
            assert not store.stop_requested()
        browser.execute_script("document.getElementById('action-stop').focus()")
        press(Keys.ENTER, Keys.TAB, Keys.ENTER)
        wait_for(browser, "document.getElementById('answer').textContent.includes('will finish after the round')")
        with closing(Store.open(run_dir)) as store:
            assert store.stop_requested()
        wait_for(browser, "document.getElementById('run-state').textContent === 'stopping'")


def test_a_phone_in_the_dark_shows_every_view_within_its_width(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", evaluates=True)
    with page(run_dir) as (_, url), chromium(width=375, height=780, dark=True) as phone:
        for view in VIEWS:
            open_view(phone, url, view)
            keep_picture(phone, f"phone-{view.replace('/', '-') or 'run'}")
            for width in (375, 320):
                screen = {"width": width, "height": 780, "deviceScaleFactor": 1, "mobile": True}
                phone.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
                wait_for(phone, f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}", view)
        paper = phone.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(18, 22, 20)"
        assert complaints(phone) == []


def test_a_login_is_refused_and_then_accepted_over_tls(tmp_path: Path, run_dir: Path) -> None:
    fleet = Authority.init(tmp_path / "fleet", Settings(hosts=("127.0.0.1",))).folder
    token = make_page_token(fleet)
    options = ("--address", "0.0.0.0:0", "--authority", str(fleet))
    with page(run_dir, *options) as (_, url), chromium(insecure=True) as browser:
        browser.get(f"{url}/#/devices")
        wait_for(browser, "location.pathname === '/login'")
        browser.find_element(By.ID, "token").send_keys("wrong", Keys.ENTER)
        wait_for(browser, "document.getElementById('refusal').textContent.includes('not the fleet')")
        keep_picture(browser, "login")
        assert browser.get_cookies() == []
        browser.find_element(By.ID, "token").send_keys(Keys.CONTROL, "a")
        browser.find_element(By.ID, "token").send_keys(token, Keys.ENTER)
        wait_for(browser, "document.getElementById('run-name')?.textContent === 'digits'")
        (cookie,) = browser.get_cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
        assert browser.execute_script("return document.cookie") == ""
        wait_for(browser, "document.getElementById('wrong-tokens').textContent.includes('1 wrong')")
        browser.find_element(By.ID, "logout").click()
        wait_for(browser, "location.pathname === '/login'")
        assert browser.get_cookies() == []


@pytest.fixture
def bench(tmp_path: Path, mosquitto: int, free_page_port: int, digits_artifacts: Artifacts) -> Iterator[Bench]:
    """A run of two devices over a real broker, nothing of it started yet."""
    bench = Bench(tmp_path)
    for index in range(2):
        (tmp_path / f"pi-{index}.toml").write_text(
            f'id = "pi-{index}"\nwork_dir = "work"\nthreads = 1\n[broker]\nport = {mosquitto}\n'
            f'[data]\ndataset = "digits"\n[data.partition]\ndevices = 2\nindex = {index}\n'
        )
    (tmp_path / "run.toml").write_text(
        f'name = "digits"\nartifacts = "{digits_artifacts.directory}"\nrun_dir = "run"\ndataset = "digits"\n'
        "rounds = 3\ncohort_size = 2\ndeadline_s = 300.0\n"
        f"[learning_rate]\nstart = 0.2\nend = 0.05\n[broker]\nport = {mosquitto}\n"
    )
    try:
        yield bench
    finally:
        bench.end()


@pytest.fixture
def free_page_port() -> int:
    return free_ports(1)[0]


@pytest.mark.mosquitto
def test_a_real_run_is_watched_paused_and_resumed_in_the_browser(
    browser: Chrome, bench: Bench, free_page_port: int
) -> None:
    def has_text(node: str, words: str) -> Callable[[], bool]:
        return lambda: words in browser.execute_script(f"return document.getElementById('{node}')?.textContent ?? ''")

    coordinator = bench.start("coordinator", "coordinator", "run", "run.toml", "--web", f"127.0.0.1:{free_page_port}")
    bench.wait_until(lambda: "the page is at http" in bench.log("coordinator"), "the page's address in the log")
    url = f"http://127.0.0.1:{free_page_port}"
    bench.wait_until(lambda: "waits for 2 more devices" in bench.log("coordinator"), "a waiting coordinator")
    open_view(browser, url, "")
    assert text(browser, "#run-state") == "running"
    browser.find_element(By.ID, "action-pause").click()
    wait_for(browser, "document.getElementById('action-resume')")
    bench.wait_until(has_text("run-state", "paused"), "the pause")
    devices = [bench.start(f"pi-{n}", "edge", "--config", f"pi-{n}.toml", "--until-finished") for n in range(2)]
    bench.wait_until(has_text("nav-devices", "2"), "two devices on the page")
    browser.find_element(By.ID, "action-resume").click()
    bench.wait_until(has_text("text-rounds", "1 of 3"), "a closed round on the page")
    browser.execute_script("location.hash = '#/log'")
    bench.wait_until(has_text("log", "update of pi-1 accepted"), "an update in the log on the page")
    assert coordinator.wait(LIMIT_S) == 0
    for device in devices:
        assert device.wait(LIMIT_S) == 0
    bench.wait_until(has_text("connection", "Connection lost"), "the end of the page with its run")
    complaints(browser)  # of the page that was gone, for a while

    with page(bench.folder / "run") as (_, again):
        open_view(browser, again, "")
        assert text(browser, "#run-state") == "finished"
        assert "model.onnx" in text(browser, "#downloads")
        keep_picture(browser, "real-run")
        model = subprocess.run(
            ["curl", "-sSf", f"{again}/files/model.onnx"], capture_output=True, check=True, timeout=LIMIT_S
        )
        assert model.stdout == (bench.folder / "run" / "model.onnx").read_bytes()
        open_view(browser, again, "devices/pi-1")
        wait_for(browser, "document.querySelectorAll('#history-rows tr').length === 3")
