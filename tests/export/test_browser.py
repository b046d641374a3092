"""The page in headless Chromium, if installed: light and dark, wide and narrow."""

import re
import shutil
import subprocess

import pytest

import sa1bpack

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with")
# A script that says how wide the page became; the report itself has none.
MEASURE = """<script>
document.title = `${document.documentElement.scrollWidth} ${innerWidth} ${document.images.length} `
  + [...document.images].every(image => image.naturalWidth > 0);
</script></body>"""


@pytest.fixture(scope="module")
def page(odd_pack, tmp_path_factory):
    """Path of a report."""
    path = tmp_path_factory.mktemp("browser") / "report.html"
    sa1bpack.report(odd_pack, path)
    return path


def browse(folder, *arguments) -> str:
    """Run headless Chromium with its own profile; returns its standard output."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={folder / 'profile'}", *arguments]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("width", [1440, 500])
def test_nothing_is_wider_than_the_window_and_every_picture_loads(page, tmp_path, width):
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", MEASURE))
    dom = browse(tmp_path, f"--window-size={width},900", "--dump-dom", copy.as_uri())
    found, room, pictures, loaded = re.search(r"<title>(\d+) (\d+) (\d+) (\w+)<", dom).groups()
    assert int(found) <= int(room) <= width and (pictures, loaded) == ("7", "true")
