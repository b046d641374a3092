"""The page in headless Chromium, where that and selenium are: scroll, look, filter, pick, save."""

import shutil

import numpy as np
import pytest
from small_tars import SMALL, photo

import sa1bpack

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium to drive a browser with")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium and chromedriver to look at the page with",
)
PATIENCE = 60
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--window-size=1300,900")  # fmt: skip


class Browser:
    """A browser on a page.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, driver):
        self.driver = driver

    def script(self, text: str):
        """What a script returns."""
        return self.driver.execute_script(f"return {text}")

    def all(self, selector: str) -> list:
        """The elements that a selector of CSS finds, and that are shown."""

        def shown() -> tuple[list]:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return ([element for element in found if element.is_displayed()],)

        return self.until(shown)[0]

    def one(self, selector: str):
        """The only element that it finds, once it is shown."""
        return self.until(lambda: self.all(selector))[0]

    def until(self, condition):
        """Wait until a condition holds, of elements that the page does not replace meanwhile;
        returns its value."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.02, [StaleElementReferenceException])
        return wait.until(lambda driver: condition())

    def press(self, *keys: str) -> None:
        """Press keys, wherever the page has its focus."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def ids(self) -> list[str]:
        """The image ids of the thumbnails that are within the window, by their places."""
        return self.script(
            "typeof state === 'object' && state.pack && [...grid.cells.values()].filter(cell => {"
            " const box = cell.getBoundingClientRect();"
            " return box.top >= 0 && box.bottom <= innerHeight && cell.position !== null; })"
            ".sort((a, b) => a.place - b.place).map(cell => cell.querySelector('b').textContent)"
        )

    def pictures_loaded(self) -> bool:
        """Whether all thumbnails within the window are there."""
        return self.script(
            "[...grid.cells.values()].filter(cell => cell.getBoundingClientRect().top < innerHeight"
            ").every(cell => cell.firstChild.complete && cell.firstChild.naturalWidth > 0)"
        )


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Selenium's driver of a browser, which the tests of this file share."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(driver, tmp_path):
    """opened(dataset): a browser on a page about it, which saves into tmp_path."""
    pages = []

    def opened(dataset) -> Browser:
        pages.append(sa1bpack.explore(dataset, port=0, folder=tmp_path))
        driver.get(pages[-1].url)
        browser = Browser(driver)
        browser.until(browser.ids)
        return browser

    yield opened
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    driver.get("about:blank")
    for page in pages:
        page.close()
    assert errors == []


def test_one_scrolls_over_a_million_images_of_which_only_those_seen_are_made(opened, pack):
    """More pixels than a browser scrolls over."""
    ds = sa1bpack.open(pack)
    many = ds[np.arange(1_000_003) % 20]
    ids = many.column("image_id")
    browser = opened(many)
    columns = browser.script("grid.columns")
    assert browser.script("grid.height") > 1.5e7
    assert browser.ids() == list(map(str, ids[: len(browser.ids())]))
    browser.until(browser.pictures_loaded)
    for share in (0.5, 0.25, 1.0, 0.0):
        room = browser.script("grid.box.scrollHeight - grid.box.clientHeight")
        browser.driver.execute_script(f"grid.box.scrollTop = {share * room}")
        browser.until(lambda: browser.script("grid.last === grid.box.scrollTop"))
        browser.until(lambda: browser.ids() and browser.pictures_loaded())
        seen = browser.script("[...grid.cells.keys()].sort((a, b) => a - b)")
        assert abs(seen[0] / len(many) - share) < 0.03 and len(seen) < 150
        texts = browser.script(
            "[...grid.cells.values()].sort((a, b) => a.place - b.place)"
            ".map(cell => cell.querySelector('b').textContent)"
        )
        assert texts == list(map(str, ids[seen]))
    browser.press(Keys.END)
    browser.until(lambda: browser.ids()[-1:] == [str(ids[-1])])
    browser.press(Keys.ARROW_UP, "k")
    assert browser.script("state.focus") == len(many) - 2 - columns
    assert browser.script("document.querySelectorAll('.cell').length") < 200


def test_an_image_large_lights_the_mask_under_the_pointer_and_shows_what_is_clicked(opened, pack):
    ds = sa1bpack.open(pack, coordinates="source")
    index = int(np.argmax(ds.column("mask_count")))
    browser = opened(pack)
    browser.all(".cell")[index].click()
    browser.until(lambda: browser.script("$('photo').complete && $('photo').naturalWidth > 0"))
    paths = browser.until(lambda: browser.driver.find_elements(By.CSS_SELECTOR, "#masks path"))
    assert len(paths) == len(ds[index]["areas"]) == 6
    order = browser.script("detail.sample.order")
    smallest = order[-1]
    x, y = browser.script(
        f"(() => {{ const path = detail.paths[{smallest}];"
        " const box = path.getBoundingClientRect(); for (let i = 0; i < 400; i++) {"
        " const x = box.left + box.width * ((i % 20) + .5) / 20;"
        " const y = box.top + box.height * (Math.floor(i / 20) + .5) / 20;"
        " if (document.elementFromPoint(x, y) === path) return [x, y]; } })()"
    )
    pointer = webdriver.ActionChains(browser.driver)
    pointer.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    pointer.perform()
    browser.until(lambda: browser.script(f"detail.paths[{smallest}].classList.contains('lit')"))
    assert browser.script(f"detail.lines[{smallest}].classList.contains('lit')")
    area = int(ds[index]["areas"][smallest])
    assert f"{smallest}: {area:,} px" in browser.one("#tip").text
    pointer.click().perform()
    text = browser.one("#mask").text
    assert f"Mask {smallest}" in text and str(ds[index]["annotation_ids"][smallest]) in text

    browser.press(Keys.ARROW_UP)  # to the mask above it in the table
    assert not browser.all("#tip")  # which says the numbers of another
    assert f"Mask {order[-2]}" in browser.one("#mask").text
    browser.press("m")
    assert browser.script("$('masks').getAttribute('class')") == "areas"
    width = f"parseFloat(getComputedStyle(detail.paths[{smallest}]).strokeWidth)"
    radius = "parseFloat(getComputedStyle($('masks').querySelector('circle')).r)"
    before = browser.script(f"[{width}, {radius}]")
    browser.press("+", "+")
    assert browser.script("detail.scale") == pytest.approx(2.25)
    after = browser.script(f"[{width} * detail.scale, {radius} * detail.scale]")
    assert after == pytest.approx(before, rel=1e-3)  # lines and points are as large at any scale
    browser.press("j")
    next_id = str(ds.column("image_id")[index + 1])
    browser.until(lambda: browser.one("#detail-title").text == next_id)
    browser.press(Keys.ESCAPE)
    browser.until(lambda: not browser.all("#detail"))
    assert browser.script("state.focus") == index + 1
    browser.press(Keys.ENTER)
    browser.one("#detail")
    browser.driver.back()
    browser.until(lambda: not browser.all("#detail"))


def test_a_pack_without_masks_is_filtered_and_enlarged(opened, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(photo(number, 40 + number, 60))
    sa1bpack.pack(folder, tmp_path / "pack", workers=1, records="none", **SMALL)
    ds = sa1bpack.open(tmp_path / "pack")
    browser = opened(tmp_path / "pack")
    browser.one(".axis")
    browser.press("/")
    browser.press("height > 40", Keys.ENTER)
    chosen = ds.where("height > 40")
    browser.until(lambda: browser.ids() == list(map(str, chosen.column("image_id").tolist())))
    browser.until(lambda: "2 images" in browser.one(".axis").text)
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.one("#mask").text == "This image has no masks.")
    assert "file name" in browser.one("#facts").text
    assert not browser.all("#table th")


def test_what_is_read_beside_an_image_stays_when_the_pointer_meets_masks(opened, pack, tmp_path):
    ds = sa1bpack.open(pack)
    index = int(np.argmax(ds.column("mask_count")))
    text = "<b>long</b> " * 2000
    texts = {int(ds.column("image_id")[index]): text}
    sa1bpack.attach(ds, "caption", texts, output=tmp_path / "caption", missing="allow")
    browser = opened(sa1bpack.open(pack, features=[tmp_path / "caption"]))
    browser.until(browser.pictures_loaded)
    browser.all(".cell")[index].click()
    shown = browser.one("#texts p").find_element(By.TAG_NAME, "bdi")
    assert shown.get_attribute("textContent") == text
    assert browser.script("$('facts-box').offsetTop < $('panel').clientHeight")
    browser.driver.execute_script("detail.light(detail.sample.order.at(-1), true)")
    assert browser.script("$('panel').scrollTop") == 0
    browser.driver.execute_script("$('table-box').scrollIntoView()")
    read = browser.script("$('panel').scrollTop")
    browser.driver.execute_script("detail.light(detail.sample.order.at(-1), true)")
    assert browser.script("$('panel').scrollTop") >= read


def test_filters_picks_and_selections(opened, pack, tmp_path):
    ds = sa1bpack.open(pack)
    browser = opened(pack)
    browser.one(".axis")
    placeholder = browser.one("#where-text").get_attribute("placeholder")
    assert not len(ds.where(placeholder))  # a condition of the page is one of the dataset
    browser.press("/")
    browser.press(placeholder)  # no Enter: it is whole
    browser.until(lambda: browser.one("#count").text == "0 of 20 images")
    browser.one("#where-text").clear()
    browser.one("#where-text").send_keys("height == 64", Keys.ENTER)
    chosen = ds.where("height == 64")
    browser.until(lambda: browser.ids() == list(map(str, chosen.column("image_id").tolist())))
    assert f"{len(chosen)} of 20 images" in browser.one("#count").text

    browser.press("/")
    browser.press("height == ", Keys.ENTER)
    assert "write NAME SIGN NUMBER" in browser.one("#where-error").text
    assert len(browser.ids()) == len(chosen)  # what was shown stays
    browser.driver.get_log("browser")  # the answer 400
    browser.one("#where-text").clear()
    browser.one("#where-text").send_keys("height == 64", Keys.ENTER)

    area = next(axis for axis in browser.all(".axis") if "Mask area" in axis.text)
    low = area.find_element(By.CSS_SELECTOR, ".ends input")
    low.send_keys("900", Keys.TAB)
    chosen = chosen.where("max(area) >= 900")
    ids = list(map(str, chosen.column("image_id").tolist()))
    browser.until(lambda: browser.ids() == ids)
    masks = int((np.concatenate([sample["areas"] for sample in chosen]) >= 900).sum())
    iou = next(axis for axis in browser.all(".axis") if "Predicted" in axis.text)
    browser.until(lambda: f"{masks} masks" in iou.text)

    browser.script("grid.box.focus()")
    browser.press("x", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, "x", "s")
    browser.one("#save-name").clear()
    browser.one("#save-name").send_keys("picked.sel", Keys.ENTER)
    assert "2 images in" in browser.one("#save-done").text
    saved = sa1bpack.open(tmp_path / "picked.sel")
    assert list(map(str, saved.column("image_id").tolist())) == [ids[0], ids[2]]

    browser.all("input[name=what]")[0].click()
    browser.one("#save-submit").click()
    browser.until(lambda: "exists" in browser.one("#save-error").text)
    assert browser.one("#save-submit").text == "Replace it"
    browser.driver.get_log("browser")  # the answer 409
    browser.one("#save-submit").click()
    browser.until(lambda: f"{len(chosen)} images in" in browser.one("#save-done").text)
    assert sa1bpack.open(tmp_path / "picked.sel").fingerprint == chosen.fingerprint
    browser.press(Keys.ESCAPE)

    browser.driver.refresh()  # the address has the filter
    browser.until(lambda: browser.ids() == ids)
    browser.one("#clear-button").click()
    browser.until(lambda: browser.one("#count").text == "20 images")


def test_a_condition_over_an_open_image_shows_the_images_that_meet_it(opened, pack):
    chosen = sa1bpack.open(pack).where("height == 64").column("image_id").tolist()
    browser = opened(pack)
    browser.press(Keys.END, Keys.ENTER)
    browser.one("#detail")
    browser.press("/")
    browser.press("height == 64")
    browser.until(lambda: not browser.all("#detail"))
    browser.until(lambda: browser.ids() == list(map(str, chosen)))
    browser.press("0")  # goes on writing
    assert browser.script("$('where-text').value") == "height == 640"
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.one("#empty").text == "No image meets the filter.")
    assert browser.script("location.hash") == "#where=height+%3D%3D+640"


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1300, True)])
def test_nothing_is_wider_than_the_window(opened, pack, width, dark):
    browser = opened(pack)
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500},
    )
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.driver.refresh()
    browser.until(browser.ids)
    background = browser.script("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 27)") == dark
    for _ in range(2):
        assert browser.script("document.documentElement.scrollWidth <= innerWidth")
        assert browser.script("$('bar').scrollWidth <= innerWidth")
        browser.press(Keys.ENTER)
        browser.one("#detail")
    if width < 500:
        browser.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 667, "height": 375, "deviceScaleFactor": 2, "mobile": True},
        )
        browser.until(lambda: browser.script("innerWidth === 667"))
        assert browser.script("Math.min($('stage').clientWidth, $('stage').clientHeight)") > 200
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
