"""Chromium, which reads pages as people do."""

import contextlib
import shutil

import pytest

sync_api = pytest.importorskip('playwright.sync_api')
NAMES = ('chromium', 'chromium-browser', 'google-chrome')
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason='needs Chromium')


@contextlib.contextmanager
def chromium():
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=CHROMIUM, args=['--no-sandbox']
    )
    yield browser
    browser.close()
