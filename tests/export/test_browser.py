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


@pytest.mark.parametrize("width", [1440, 500])
def test_nothing_is_wider_than_the_window_and_every_picture_loads(odd_pack, tmp_path, width):
    page = tmp_path / "report.html"
    sa1bpack.report(odd_pack, page)
    page.write_text(page.read_text().replace("</body>", MEASURE))
    flags = "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"
    size = f"--window-size={width},900"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *flags, size, profile, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    shown = re.search(r"<title>(\d+) (\d+) (\d+) (\w+)<", done.stdout).groups()
    assert int(shown[0]) <= int(shown[1]) <= width and shown[2:] == ("7", "true")
